"""What the timings say: the curves, where they lose, and that in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .words import count, listed, times

Row = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """One part of the model in one setup, by length."""

    part: str
    setup: str
    rows: list[Row]

    @property
    def lost(self) -> list[int]:
        """Lengths measured at which Focus is slower."""
        return [row["tokens"] for row in self.rows if row["speedup"] < 1]

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Stretches of length where the curve is below 1, between measurements by straight lines in logarithms."""
        if len(self.rows) == 1:
            return []
        ends: list[tuple[float, float]] = []
        for left, right in pairwise(self.rows):
            below = left["speedup"] < 1, right["speedup"] < 1
            if not any(below):
                continue
            start, stop = float(left["tokens"]), float(right["tokens"])
            if not all(below):
                start, stop = (start, _even(left, right)) if below[0] else (_even(left, right), stop)
            if ends and ends[-1][1] == start:
                start = ends.pop()[0]
            ends.append((start, stop))
        return ends

    @property
    def crossovers(self) -> list[float]:
        """Lengths from which Focus wins."""
        last = self.rows[-1]["tokens"]
        return [stop for _, stop in self.spans if stop < last]

    @property
    def best(self) -> Row:
        return max(self.rows, key=lambda row: row["speedup"])

    @property
    def loses(self) -> str:
        """Where it is slower, plainly."""
        lost, lengths = self.lost, [row["tokens"] for row in self.rows]
        if not lost:
            return "faster than full attention at every length measured"
        if lost == lengths:
            return "slower than full attention at every length measured"
        if lost == lengths[: len(lost)]:
            return f"slower than full attention up to {count(lost[-1])} tokens"
        return f"slower than full attention at {listed([count(n) for n in lost])} tokens"

    @property
    def words(self) -> str:
        best = f"at best {times(self.best['speedup'])} at {count(self.best['tokens'])} tokens"
        if not self.crossovers:
            return f"{self.loses}; {best}"
        return f"{self.loses}; even near {near(self.crossovers[-1])} tokens, read off between measurements; {best}"


def curves(rows: list[Row]) -> list[Curve]:
    """One per part and setup, in the order they came."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.get("speedup") and row.get("tokens"):
            found.setdefault((str(row.get("part", "")), str(row.get("setup") or "")), []).append(row)
    return [Curve(*key, sorted(rows, key=lambda row: row["tokens"])) for key, rows in found.items()]


def _even(left: Row, right: Row) -> float:
    a, b = math.log(left["speedup"]), math.log(right["speedup"])
    return float(left["tokens"] * (right["tokens"] / left["tokens"]) ** (-a / (b - a)))


def near(tokens: float) -> str:
    """To two digits: what is read off a line is no measurement."""
    digits = 10 ** max(len(f"{tokens:.0f}") - 2, 0)
    return count(round(tokens / digits) * digits)
