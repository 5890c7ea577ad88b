"""The three panels of a part: speedup with its bound, peak memory, and time with its fitted exponent."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import Any

from ..report.theme import light
from ..report.words import length, seconds
from .plot_series import Series, full_lines
from .show import size

DASHES = ("-", (0, (6, 2)), (0, (4, 1.5, 1, 1.5)), (0, (2, 1.5)))  # of several full attentions
FULL = "ink"
HELD = {"kernel": "peak memory, with q, k and v", "decode": "memory of the cache"}


def draw_speed(axis: Any, own: Sequence[Series]) -> None:
    """Times as fast as full attention, the bound dashed; below 1 it loses."""
    values = [1.0]
    bounds: list[list[tuple[float, float]]] = []
    for one in own:
        bound = one.points("bound")
        if bound and bound not in bounds:
            axis.plot(*zip(*bound, strict=True), color=one.colour, ls="--", lw=1.1, alpha=0.75, gid=f"bound {one.name}")
        bounds.append(bound)
        line = one.points("speedup")
        axis.plot(
            *zip(*line, strict=True), color=one.colour, lw=1.8, zorder=4, label=one.name, gid=f"speedup {one.name}"
        )
        _dots(axis, one, "speedup", one.colour, open_where="sampled")
        values += [value for _, value in (*line, *bound)]
    axis.set_title("speedup over full attention", loc="left")
    _lengths(axis, own)
    axis.set_yscale("log", base=2)
    low = min(values) / 1.25
    high = max(values) * (max(values) / low) ** (0.1 + 0.08 * (len(own) + 2))  # room for the legend
    axis.set_ylim(low, high)
    axis.axhspan(low, 1, color=light("loss"), lw=0, zorder=0)
    axis.axhline(1, color=light("ink"), lw=0.8, zorder=1)
    axis.text(0.99, 0.015, "slower than full", color=light("bad"), size=7.5, ha="right", transform=axis.transAxes)
    ticks = [2.0**n for n in range(ceil(log2(low)), int(log2(high)) + 1)]
    axis.set_yticks(ticks, [f"{tick:g}\u00d7" for tick in ticks])
    axis.minorticks_off()
    _last_values(axis, own)
    _legend(axis, own, bounded=any(bounds))


def _last_values(axis: Any, own: Sequence[Series]) -> None:
    """The speedup at the longest length beside each line, apart from each other."""
    low, high = axis.get_ylim()
    tall, apart, below = 165.0, 9.0, -1e9  # points
    for tokens, value, colour in sorted(
        ((*one.points("speedup")[-1], one.colour) for one in own), key=lambda last: last[1]
    ):
        place = tall * log2(value / low) / log2(high / low)
        below = max(place, below + apart)
        axis.annotate(
            f"{value:.2f}\u00d7", (tokens, value), (6, below - place), textcoords="offset points", color=colour, size=8,
            va="center", weight="bold",
        )  # fmt: skip


def draw_memory(axis: Any, own: Sequence[Series]) -> None:
    """Bytes of both sides; where only their ratio is known, that."""
    _lengths(axis, own)
    if any(one.points("focus_bytes") for one in own):
        axis.set_title(HELD.get(own[0].part, "peak memory, without the weights"), loc="left")
        _costs(axis, own, "bytes")
        _log_axis(axis, size)
    elif any(one.points("memory") for one in own):
        axis.set_title("peak memory over full attention's", loc="left")
        axis.axhline(1, color=light("ink"), lw=0.8)
        for one in own:
            line = one.points("memory")
            if line:
                axis.plot(*zip(*line, strict=True), color=one.colour, lw=1.8, label=one.name, gid=f"memory {one.name}")
                _dots(axis, one, "memory", one.colour)
        axis.set_ylim(0, None)
        axis.legend(loc="best", fontsize=7.5)
    else:
        axis.set_title("peak memory", loc="left")
        axis.set_yticks([])
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", color=light("soft"))


def draw_growth(axis: Any, own: Sequence[Series]) -> None:
    """Seconds of both sides."""
    what = "time per token" if own[0].part == "decode" else "time"
    axis.set_title(f"{what}, as a power of n tokens", loc="left")
    _lengths(axis, own)
    _costs(axis, own, "seconds")
    _log_axis(axis, lambda value: f"{value:,.0f} s" if value >= 1000 else seconds(value))


def _costs(axis: Any, own: Sequence[Series], what: str) -> None:
    """Lines of full attention and of Focus in logarithms, their exponents in the legend."""
    for number, full in enumerate(full_lines(own, f"full_{what}")):
        axis.plot(
            *zip(*full.points, strict=True), color=light(FULL), ls=DASHES[number % len(DASHES)], lw=1.4,
            label=_grown(full.name, full.exponent), gid=f"full_{what} {full.series.name}",
        )  # fmt: skip
        _dots(axis, full.series, f"full_{what}", light(FULL), open_where="sampled" if what == "seconds" else None)
    for one in own:
        line = one.points(f"focus_{what}")
        if line:
            label = _grown(one.name, one.exponent(f"focus_{what}"))
            axis.plot(
                *zip(*line, strict=True),
                color=one.colour,
                lw=1.8,
                zorder=4,
                label=label,
                gid=f"focus_{what} {one.name}",
            )
            _dots(axis, one, f"focus_{what}", one.colour)
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.set_ylim(low, high * (high / low) ** (0.07 * (len(axis.get_legend_handles_labels()[0]) + 1)))
    axis.legend(loc="upper left", fontsize=7.5, borderaxespad=0.2)


def _grown(name: str, exponent: float | None) -> str:
    return name if exponent is None else f"{name} ~ n^{exponent:.2f}"


def _dots(axis: Any, one: Series, measure: str, colour: str, open_where: str | None = None) -> None:
    """A dot for each row: a triangle beyond the model's positions, open where full attention was sampled."""
    for row in one.rows:
        if not row.get(measure):
            continue
        hollow = open_where is not None and row.get(open_where)
        axis.plot(
            row["tokens"], row[measure], marker="^" if row.get("beyond_positions") else "o", ls="",
            ms=6 if row.get("beyond_positions") else 5, color=colour, mfc=light("paper") if hollow else colour,
            mec=colour if hollow else light("paper"), mew=1.3 if hollow else 0.7, zorder=5, gid="dot",
        )  # fmt: skip


def _legend(axis: Any, own: Sequence[Series], bounded: bool) -> None:
    """The series, and what dashes and marks mean, where there are any."""
    from matplotlib.lines import Line2D

    handles, labels = axis.get_legend_handles_labels()
    rows = [row for one in own for row in one.rows]
    soft, paper = light("soft"), light("paper")
    marks: dict[str, tuple[bool, dict[str, Any]]] = {
        "bound": (bounded, {"ls": "--", "lw": 1.1}),
        "full attention sampled": (
            any(row.get("sampled") for row in rows),
            {"ls": "", "marker": "o", "mfc": paper, "ms": 5},
        ),
        "beyond the model's positions": (
            any(row.get("beyond_positions") for row in rows),
            {"ls": "", "marker": "^", "ms": 6},
        ),
    }
    for label, (wanted, style) in marks.items():
        if wanted:
            handles.append(Line2D([], [], color=soft, **style))
            labels.append(label)
    axis.legend(handles, labels, loc="upper left", fontsize=7.5, borderaxespad=0.2)


def _lengths(axis: Any, own: Sequence[Series]) -> None:
    """Lengths that were measured, in logarithms; not all where they would crowd."""
    found = sorted({row["tokens"] for one in own for row in one.rows})
    step = ceil(len(found) / 7)
    axis.set_xscale("log", base=2)
    axis.set_xticks(found[::-1][::step], [length(tokens) for tokens in found[::-1][::step]])
    axis.minorticks_off()
    room = (found[-1] / found[0]) ** 0.16 if len(found) > 1 else 1.5  # for values beside the last dots
    axis.set_xlim(found[0] / room**0.4, found[-1] * room)
    axis.set_xlabel("tokens")


def _log_axis(axis: Any, words: Any) -> None:
    """Ticks at powers of ten, and between them where there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_ylim()
    subs = (1.0,) if high / low > 1e3 else (1.0, 3.0) if high / low > 30 else (1.0, 2.0, 5.0)
    axis.yaxis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
