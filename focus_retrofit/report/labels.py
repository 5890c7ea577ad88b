"""Labels beside points, none over another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .theme import light

_SIDES = ((1, 0), (-1, 0), (0.8, 0.8), (0.8, -0.8), (-0.8, 0.8), (-0.8, -0.8), (0, 1), (0, -1))
_ALIGN = {1: ("left", "bottom"), 0: ("center", "center"), -1: ("right", "top")}


def place_labels(
    axis: Any, points: Sequence[tuple[float, float, str, str]], avoid: Sequence[tuple[float, float]] = ()
) -> None:
    """Points are (x, y, text, colour), the important first; a label far from its point gets a thin line to it."""
    from matplotlib.transforms import Bbox

    axis.figure.draw_without_rendering()
    frame, taken = axis.get_window_extent(), []
    for (x, y), size in [(point[:2], 10) for point in points] + [(point, 2) for point in avoid]:
        px, py = axis.transData.transform((x, y))
        taken.append(Bbox.from_bounds(px - size / 2, py - size / 2, size, size))
    for x, y, text, colour in points:
        for dx, dy, far in _offsets():
            note = axis.annotate(
                text, (x, y), (dx, dy), textcoords="offset points", color=colour, size=8.5, zorder=5,
                ha=_ALIGN[(dx > 0) - (dx < 0)][0], va=_ALIGN[(dy > 0) - (dy < 0)][1],
                arrowprops={"arrowstyle": "-", "color": light("other"), "lw": 0.6, "shrinkB": 4} if far else None,
            )  # fmt: skip
            note.set_in_layout(False)
            box = Bbox(note.get_tightbbox() if not far else note.get_window_extent())
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box.padded(1))
                break
            note.remove()


def _offsets() -> Iterator[tuple[float, float, bool]]:
    for distance in (7, 12, 20, 30, 42, 56, 72, 90):
        for x, y in _SIDES:
            yield x * distance, y * distance, distance > 12
