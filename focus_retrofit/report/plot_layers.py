"""Two plots over the layers: how even the groups are, and how much attention they keep."""

from __future__ import annotations

from math import ceil
from typing import Any

from .facts import largest_group
from .theme import group_colour, light, second_time
from .words import percent

_COLUMNS = 8


def draw_balance(layers: list[dict[str, Any]], narrow: bool) -> Any:
    """Shares stacked, with dotted lines where even groups would end."""
    figure, axis = _axis(layers, narrow, 3.4)
    groups = max(len(layer["shares"]) for layer in layers)
    floor = [0.0] * len(layers)
    handles = []
    for group in range(groups):
        again = second_time(group)
        heights = [layer["shares"][group] if group < len(layer["shares"]) else 0.0 for layer in layers]
        handles.append(
            axis.bar(
                range(len(layers)), heights, bottom=floor, width=0.86, color=group_colour(group), lw=0.6,
                edgecolor=light("soft" if again else "paper"), hatch="...." if again else None,
            )
        )  # fmt: skip
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    for group in range(1, groups if groups <= _COLUMNS else 0):
        axis.axhline(group / groups, color=light("ink"), lw=0.7, ls=(0, (1, 3)), zorder=3)
    axis.set_ylim(0, 1)
    axis.grid(False)
    axis.set_ylabel("share of the tokens")
    share, layer, group = largest_group(layers) or (0.0, 0, 0)
    place = [x["layer"] for x in layers].index(layer)
    middle = sum(layers[place]["shares"][:group]) + share / 2
    if share > 0.15:
        axis.text(place, middle, percent(share), rotation=90, size=8, weight="bold", ha="center", va="center", zorder=4)
    by_column = sorted(range(groups), key=lambda group: group % _COLUMNS)  # a legend fills its columns first
    figure.legend(
        [handles[group][0] for group in by_column], [str(group) for group in by_column], title="group",
        loc="outside upper center", ncols=min(groups, _COLUMNS),
        handlelength=1, columnspacing=1, handletextpad=0.4, title_fontsize=8.5,
    )  # fmt: skip
    return figure


def draw_kept(layers: list[dict[str, Any]], narrow: bool) -> Any:
    """What the groups keep, and what groups drawn at random would."""
    figure, axis = _axis(layers, narrow, 3.0)
    places = range(len(layers))
    kept = [layer["kept"] for layer in layers]
    pairs = [layer.get("distant") for layer in layers]
    handles = [axis.bar(places, kept, width=0.7, color=light("focus"), alpha=0.85, label="kept by the groups")]
    if all(share is not None for share in pairs):
        handles += axis.plot(
            places, pairs, "o--", color=light("ink"), ms=3, lw=1, label="random groups: share of pairs"
        )
    axis.set_ylim(0, min(1.0, 1.2 * max([*kept, *(share or 0 for share in pairs)])) or 1)
    axis.set_ylabel("share of distant attention")
    figure.legend(handles=handles, loc="outside upper center", ncols=1 if narrow else 2)
    return figure


def _axis(layers: list[dict[str, Any]], narrow: bool, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(3.7, height) if narrow else (7.6, height), layout="constrained")
    axis = figure.subplots()
    step = ceil(len(layers) / (8 if narrow else 16))
    axis.set_xticks(range(0, len(layers), step), [str(layer["layer"]) for layer in layers[::step]])
    axis.tick_params(axis="x", length=0)
    axis.set_xlim(-0.7, len(layers) - 0.3)
    axis.set_xlabel("layer")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: percent(y)))
    return figure, axis
