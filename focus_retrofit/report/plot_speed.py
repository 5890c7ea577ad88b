"""Speedup against length, a panel for each part; where it loses is shaded."""

from __future__ import annotations

from math import ceil
from typing import Any

from .embed import shorten
from .speed import Curve, near
from .theme import light
from .words import length, times

_MOST = 6  # panels; the table has the rest


def draw(timed: list[Curve], narrow: bool) -> Any:
    from matplotlib.figure import Figure

    timed = timed[:_MOST]
    columns = 1 if narrow else min(3, len(timed))
    rows = ceil(len(timed) / columns)
    figure = Figure(
        figsize=(3.7, 2.5 * rows) if narrow else (7.6, (3.1 if columns > 1 else 3.6) * rows), layout="constrained"
    )
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for place, axis in enumerate(axes):
        if place < len(timed):
            _panel(axis, timed[place])
            if place % columns == 0:
                axis.set_ylabel("times full attention's speed")
        else:
            axis.set_visible(False)
    return figure


def _panel(axis: Any, curve: Curve) -> None:
    from matplotlib.ticker import MaxNLocator

    lengths, speedups = [row["tokens"] for row in curve.rows], [row["speedup"] for row in curve.rows]
    axis.set_xscale("log", base=2)
    axis.axhline(1, color=light("ink"), lw=0.8)
    for start, stop in curve.spans:
        axis.axvspan(start, stop, color=light("loss"), lw=0, zorder=0)
    bounds = [(row["tokens"], row["bound"]) for row in curve.rows if row.get("bound")]
    if bounds:
        axis.plot([x for x, _ in bounds], [y for _, y in bounds], color=light("other"), ls=":", lw=1.4)
        axis.annotate("bound", bounds[-1], (0, 4), textcoords="offset points", color=light("soft"), size=8, ha="right")
    axis.plot(lengths, speedups, "o-", color=light("focus"), lw=1.8, ms=4.5, mec=light("paper"), mew=0.8, zorder=4)
    top = max([*speedups, *(y for _, y in bounds), 1])
    axis.set_ylim(0, 1.18 * top)
    for tokens in curve.crossovers:
        axis.plot(tokens, 1, "D", color=light("bad"), ms=5, mec=light("paper"), zorder=5)
        axis.annotate(
            f"even near {near(tokens)}", (tokens, 1), (6, -11), textcoords="offset points", color=light("bad"), size=8
        )
    if curve.spans:
        start, stop = curve.spans[0]
        axis.text((start * stop) ** 0.5, 1.14 * top, "slower", color=light("bad"), size=8, ha="center", va="top")
    step = ceil(len(lengths) / 6)
    axis.set_xticks(lengths[::step], [length(n) for n in lengths[::step]])
    axis.minorticks_off()
    axis.yaxis.set_major_locator(MaxNLocator(5, integer=top > 2))
    axis.set_title(shorten(curve.part, 16), loc="left")
    axis.set_title(f"at best {times(curve.best['speedup'])}", loc="right", color=light("focus"))
    axis.set_xlabel("tokens")
