"""Perplexity against density, every method named where it stands."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from .embed import shorten
from .labels import place_labels
from .theme import light
from .words import TIMES, percent

_STYLES = {"full": ("ink", "s"), "focus": ("focus", "o"), "baseline": ("other", "D")}


def draw(rows: list[dict[str, Any]], narrow: bool) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(3.7, 4.3) if narrow else (7.6, 4.1), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for row in rows:
        if row.get("standard_error"):
            axis.errorbar(
                row["density"], row["perplexity"], yerr=row["standard_error"],
                fmt="none", ecolor=light("line"), elinewidth=2.2, zorder=1,
            )  # fmt: skip
    for row in rows:
        role, marker = _STYLES.get(str(row.get("kind")), _STYLES["baseline"])
        axis.plot(row["density"], row["perplexity"], marker, color=light(role), ms=6, mec=light("paper"), zorder=4)
        if role == "ink":
            axis.axhline(row["perplexity"], color=light("ink"), lw=0.8, ls=(0, (5, 4)), zorder=2)
    own = sorted((row["density"], row["perplexity"]) for row in rows if row.get("kind") == "focus")
    axis.plot([x for x, _ in own], [y for _, y in own], color=light("focus"), lw=1.4, zorder=3)
    axis.set_xlim(0, 1.06)
    axis.margins(y=0.12)
    axis.set_xlabel("density: share of causal pairs computed")
    axis.set_ylabel("perplexity (lower is better)")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: percent(x)))
    fewer = axis.secondary_xaxis("top")
    fewer.set_xticks([1, 1 / 2, 1 / 4, 1 / 8], ["all pairs", f"2{TIMES} fewer", f"4{TIMES}", f"8{TIMES}"])
    fewer.spines["top"].set_visible(False)
    fewer.tick_params(length=0)
    first = {"focus": 0, "full": 1}
    ordered = sorted(rows, key=lambda row: first.get(str(row.get("kind")), 2))
    place_labels(
        axis,
        [
            (
                row["density"],
                row["perplexity"],
                shorten(row.get("method", ""), 26 if narrow else 40),
                light(_STYLES.get(str(row.get("kind")), _STYLES["baseline"])[0].replace("other", "soft")),
            )
            for row in ordered
        ],
        [(x / 100, row["perplexity"]) for row in rows if row.get("kind") == "full" for x in range(107)] + _along(own),
    )
    return figure


def _along(line: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points on a line, close enough that no label fits between them."""
    return [
        (left[0] + (right[0] - left[0]) * part / 60, left[1] + (right[1] - left[1]) * part / 60)
        for left, right in pairwise(line)
        for part in range(61)
    ]
