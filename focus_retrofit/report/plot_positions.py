"""Perplexity by position in a long text: a panel per way to attend, a line per scaling of positions."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from .look import looking
from .theme import light
from .words import length

LINES = {"none": ("bad", "-"), "linear": ("other", "--"), "ntk": ("good", "-."), "yarn": ("focus", "-")}


def draw(curves: Sequence[dict[str, Any]], made_for: int, narrow: bool = False) -> Any:
    """Curves with title (of the panel), rope, perplexity by range of positions, and the edges of the ranges."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, ScalarFormatter

    panels = list(dict.fromkeys(curve["title"] for curve in curves))
    shape = (len(panels), 1) if narrow else (1, len(panels))
    size = (3.7, 2.6 * len(panels)) if narrow else (3.8 * len(panels), 3.2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(*shape, squeeze=False, sharey=True)
    last = max(curve["edges"][-1] for curve in curves)
    values = [x for curve in curves for x in curve["perplexity"]]
    wide = max(values) > 10 * min(values)
    for place, axis in enumerate(axes.flat):
        for curve in (curve for curve in curves if curve["title"] == panels[place]):
            role, style = LINES.get(curve["rope"], ("ink", ":"))
            steps = [*curve["perplexity"], curve["perplexity"][-1]]
            axis.plot(
                curve["edges"],
                steps,
                style,
                color=light(role),
                label=curve["rope"],
                drawstyle="steps-post",
                linewidth=1.3,
            )
        axis.axvline(made_for, color=light("soft"), linewidth=0.8, linestyle=":")
        axis.set_title(panels[place], loc="left")
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(6))
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.yaxis.set_minor_locator(NullLocator())
        ticks = [n * last / 4 for n in range(5)]
        axis.set_xticks(ticks, [length(x) for x in ticks])
        axis.set_xlabel("position")
    axes.flat[0].set_ylabel("perplexity")
    axes.flat[0].legend(title="rope")
    figure.suptitle(
        f"dotted: the {length(made_for)} positions that the model was made for",
        size=8, color=light("soft"), x=0.01, ha="left",
    )  # fmt: skip
    return figure


def draw_positions(curves: Sequence[dict[str, Any]], made_for: int) -> bytes:
    """The plot as PNG."""
    buffer = io.BytesIO()
    with looking("the plot needs matplotlib"):
        draw(curves, made_for).savefig(buffer, format="png", dpi=150, facecolor=light("paper"))
    return buffer.getvalue()
