"""How cost grows with length: the exponent of a power of the length, fitted to what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .options import PARTS

Row = Mapping[str, Any]
POINTS = 3  # that a line is fitted to, at least
COSTS = ("full_seconds", "focus_seconds", "full_bytes", "focus_bytes")


def fit_exponent(points: Iterable[tuple[float, float]]) -> float | None:
    """The p of value ~ tokens^p, least squares in logarithms over the longer half of the lengths, at least three;
    none with fewer. Short lengths are left out: what a call costs by itself would flatten the line."""
    kept = fitted(points)
    if not kept:
        return None
    x, y = ([math.log(point[side]) for point in kept] for side in (0, 1))
    middle, height = sum(x) / len(x), sum(y) / len(y)
    spread = sum((one - middle) ** 2 for one in x)
    return sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True)) / spread


def fitted(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that a line is fitted to, by length; of a length measured twice the smaller value. May be empty."""
    found: dict[float, float] = {}
    for tokens, value in points:
        if value and value > 0:
            found[tokens] = min(value, found.get(tokens, value))
    longest = sorted(found)[-max(POINTS, math.ceil(len(found) / 2)) :]
    return [(tokens, found[tokens]) for tokens in longest] if len(longest) >= POINTS else []


def by_series(rows: Iterable[Row]) -> dict[tuple[str, str], list[Any]]:
    """(part, setup) -> its rows by length; parts in their order, setups as they came."""
    found: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        found.setdefault((row["part"], row["setup"]), []).append(row)
    ordered = sorted(found.items(), key=lambda one: PARTS.index(one[0][0]))
    return {key: sorted(series, key=lambda row: row["tokens"]) for key, series in ordered}


def cost_growth(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """For each part and setup the exponents of seconds and bytes, and the lengths they are of; null with too few."""
    found = []
    for (part, setup), series in by_series(rows).items():
        kept = fitted(points(series, "focus_seconds"))
        exponents = {name: fit_exponent(points(series, name)) for name in COSTS}
        lengths = [int(kept[0][0]), int(kept[-1][0])] if kept else None
        found.append({"part": part, "setup": setup, "lengths": lengths, **exponents})
    return found


def points(series: Sequence[Row], name: str) -> list[tuple[float, float]]:
    """(tokens, value) of the rows that have it."""
    return [(row["tokens"], row[name]) for row in series if row.get(name)]
