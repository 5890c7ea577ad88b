"""Perplexity against density and against measured speed, every method named where it stands."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from .embed import shorten
from .labels import place_labels
from .theme import light
from .words import TIMES, percent

_STYLES = {"full": ("ink", "s"), "focus": ("focus", "o"), "weights": ("soft", "^"), "baseline": ("other", "D")}
Row = dict[str, Any]


def draw(rows: list[Row], narrow: bool, many: bool = False) -> Any:
    """A method whose sparsity is only a mask has no speed to show. `many` rows get a larger figure, no bars (which tell
    how windows differ, not methods), and a dotted line along what nothing else beats in both respects."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    keys = ["density", "speed"] if all(row.get("speed") for row in rows) else ["density"]
    size = (3.7, 4.3 * len(keys)) if narrow else (7.6, 4.1 if len(keys) == 1 else 4.4)
    figure = Figure(figsize=(11, 6.5) if many else size, layout="constrained")
    FigureCanvasAgg(figure)
    shape = (len(keys), 1) if narrow else (1, len(keys))
    axes = figure.subplots(*shape, sharey=not narrow, squeeze=False).flatten()
    shown = {"density": rows, "speed": [row for row in rows if row.get("engine") != "dense mask"]}
    for axis, key in zip(axes, keys, strict=True):
        _points(axis, shown[key], key, bars=not many)
        if many:
            best = zip(*frontier(shown[key], key), strict=True)
            axis.step(*best, where="post", color=light("other"), lw=1, ls=(0, (1, 2)), zorder=2)
        _by_density(axis) if key == "density" else _by_speed(axis, shown[key])
        if axis is axes[0] or narrow:
            axis.set_ylabel("perplexity (lower is better)")
    for axis, key in zip(axes, keys, strict=True):  # once all limits are known
        _names(axis, shown[key], key, 26 if narrow or len(keys) > 1 else 40)
    return figure


def _points(axis: Any, rows: list[Row], key: str, bars: bool) -> None:
    for row in rows:
        if bars and row.get("standard_error"):
            axis.errorbar(
                row[key], row["perplexity"], yerr=row["standard_error"],
                fmt="none", ecolor=light("line"), elinewidth=2.2, zorder=1,
            )  # fmt: skip
    for row in rows:
        role, marker = _style(row)
        axis.plot(row[key], row["perplexity"], marker, color=light(role), ms=6, mec=light("paper"), zorder=4)
        if role == "ink":
            axis.axhline(row["perplexity"], color=light("ink"), lw=0.8, ls=(0, (5, 4)), zorder=2)
    own = _own(rows, key)
    axis.plot([x for x, _ in own], [y for _, y in own], color=light("focus"), lw=1.4, zorder=3)
    axis.margins(y=0.12)


def frontier(rows: list[Row], key: str) -> list[tuple[float, float]]:
    """(density or speed, perplexity) of the rows that no other row beats in both, from the cheapest on."""
    better = -1 if key == "speed" else 1
    found: list[tuple[float, float]] = []
    for x, y in sorted(((row[key], row["perplexity"]) for row in rows), key=lambda at: (better * at[0], at[1])):
        if not found or y < found[-1][1]:
            found.append((x, y))
    return found


def _by_density(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_xlim(0, 1.06)
    axis.set_xlabel("density: share of causal pairs computed")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: percent(x)))
    fewer = axis.secondary_xaxis("top")
    fewer.set_xticks([1, 1 / 2, 1 / 4, 1 / 8], ["all pairs", f"2{TIMES} fewer", f"4{TIMES}", f"8{TIMES}"])
    fewer.spines["top"].set_visible(False)
    fewer.tick_params(length=0)


def _by_speed(axis: Any, rows: list[Row]) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_xlim(0, 1.12 * max(max(row["speed"] for row in rows), 1.0))
    axis.set_xlabel("measured speed of the whole model")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}{TIMES}"))
    axis.axvline(1, color=light("line"), lw=0.8, zorder=0)


def _names(axis: Any, rows: list[Row], key: str, most: int) -> None:
    first = {"focus": 0, "full": 1}
    ordered = sorted(rows, key=lambda row: first.get(str(row.get("kind")), 2))
    right = axis.get_xlim()[1]
    place_labels(
        axis,
        [
            (row[key], row["perplexity"], shorten(row.get("method", ""), most), _ink(row))
            for row in ordered
        ],
        [(right * x / 107, row["perplexity"]) for row in rows if row.get("kind") == "full" for x in range(108)]
        + _along(_own(rows, key)),
    )  # fmt: skip


def _style(row: Row) -> tuple[str, str]:
    return _STYLES.get(str(row.get("kind")), _STYLES["baseline"])


def _ink(row: Row) -> str:
    return light(_style(row)[0].replace("other", "soft"))


def _own(rows: list[Row], key: str) -> list[tuple[float, float]]:
    """Focus itself, in order."""
    return sorted((row[key], row["perplexity"]) for row in rows if row.get("kind") == "focus")


def _along(line: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points on a line, close enough that no label fits between them."""
    return [
        (left[0] + (right[0] - left[0]) * part / 60, left[1] + (right[1] - left[1]) * part / 60)
        for left, right in pairwise(line)
        for part in range(61)
    ]
