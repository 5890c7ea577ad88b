"""What is found, by depth and length: a panel per method, a number in every square."""

from __future__ import annotations

import io
from collections.abc import Sequence
from math import ceil
from typing import Any

from focus_kernels.errors import FocusError

from .embed import shorten
from .look import looking
from .theme import light
from .words import length, percent

_DARK = 0.7  # above it a square takes light ink


def draw(cells: Sequence[dict[str, Any]], narrow: bool) -> Any:
    """Cells of one task, as `run_retrieval` gives them, on a figure. Blue alone, from paper to deep: it needs no
    telling apart of hues."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    methods = list(dict.fromkeys(cell["method"] for cell in cells))
    lengths = sorted({cell["length"] for cell in cells})
    depths = sorted({cell["depth"] for cell in cells})
    columns = 1 if narrow else min(3, len(methods))
    rows = ceil(len(methods) / columns)
    panel = 0.95 + 0.33 * len(depths)
    figure = Figure(figsize=(3.7 if narrow else 7.6, 0.3 + panel * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    colours = LinearSegmentedColormap.from_list("found", [light("wash"), light("focus")])
    for place, axis in enumerate(axes.flat):
        if place >= len(methods):
            axis.set_visible(False)
            continue
        own = [cell for cell in cells if cell["method"] == methods[place]]
        _panel(axis, own, lengths, depths, colours)
        density = sum(cell["density"] for cell in own) / len(own)
        axis.set_title(shorten(methods[place], 22), loc="left", size=8)
        axis.set_title(percent(density), loc="right", color=light("soft"), weight="normal", size=8)
        if place % columns == 0:
            axis.set_ylabel("depth")
        if place + columns >= len(methods):
            axis.set_xlabel("tokens")
    counts = sorted({cell["items"] for cell in cells})
    items = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    figure.suptitle(
        f"{cells[0]['task']}: right answers of {items} to a square; at a panel's right, pairs computed",
        size=8, color=light("soft"), x=0.01, ha="left", wrap=True,
    )  # fmt: skip
    return figure


def _panel(axis: Any, cells: Sequence[dict[str, Any]], lengths: list[int], depths: list[float], colours: Any) -> None:
    from matplotlib.patches import Rectangle

    for cell in cells:
        x, y, share = lengths.index(cell["length"]), depths.index(cell["depth"]), cell["accuracy"]
        axis.add_patch(
            Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colours(share), edgecolor=light("paper"), linewidth=1.5)
        )
        ink = light("paper" if share > _DARK else "ink")
        axis.text(x, y, percent(share), color=ink, size=8.5, ha="center", va="center")
    axis.set_xlim(-0.5, len(lengths) - 0.5)
    axis.set_ylim(len(depths) - 0.5, -0.5)
    axis.set_xticks(range(len(lengths)), [length(tokens) for tokens in lengths])
    axis.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths])
    axis.tick_params(length=0)
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)


def draw_retrieval(cells: Sequence[dict[str, Any]], task: str, narrow: bool = False) -> bytes:
    """One task's heat map as PNG."""
    own = [cell for cell in cells if cell["task"] == task and cell["depth"] is not None]
    if not own:
        raise FocusError(f"no cell of task {task!r} has a depth: there is no heat map of it")
    buffer = io.BytesIO()
    with looking("the heat map needs matplotlib"):
        draw(own, narrow).savefig(buffer, format="png", dpi=150, facecolor=light("paper"))
    return buffer.getvalue()
