"""Rows as the lines of a plot: one for each part, setup and file, with a colour and a name of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..report.theme import line_colour
from .growth import by_series, fit_exponent, points
from .labels import apart


@dataclass(frozen=True)
class Series:
    """Rows of one part and setup by length."""

    part: str
    setup: str
    file: str
    rows: list[Any]
    name: str  # in legends: what sets it apart from the part's others, or Focus
    colour: str

    def points(self, name: str) -> list[tuple[float, float]]:
        return points(self.rows, name)

    def exponent(self, name: str) -> float | None:
        return fit_exponent(self.points(name))


@dataclass(frozen=True)
class FullLine:
    """Full attention, which several series may share."""

    name: str
    series: Series
    points: list[tuple[float, float]]
    exponent: float | None


def series_of(records: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Series]:
    """By part, then file, then setup."""
    found: dict[str, list[tuple[str, str, list[Any]]]] = {}
    for file, record in records:
        for (part, setup), rows in by_series(record["rows"]).items():
            found.setdefault(part, []).append((file, setup, rows))
    series = []
    for part, lines in found.items():
        several = len({file for file, _, _ in lines}) > 1
        setups = list(dict.fromkeys(setup for _, setup, _ in lines))
        told = dict(zip(setups, apart(setups), strict=True))
        for number, (file, setup, rows) in enumerate(lines):
            words = [file] if several else []
            words += [told[setup]] if told[setup] else []
            series.append(Series(part, setup, file, rows, ": ".join(words) or "Focus", line_colour(number)))
    return series


def full_lines(own: Sequence[Series], measure: str) -> Iterator[FullLine]:
    """Full attention of each series, once where several have the same; parts of a line that is there are left out."""
    seen: list[tuple[Series, list[tuple[float, float]]]] = []
    for one in sorted(own, key=lambda one: -len(one.points(measure))):
        line = one.points(measure)
        if line and not any(set(line) <= set(other) for _, other in seen):
            seen.append((one, line))
    for one, line in seen:
        name = "full attention" if len(seen) == 1 else f"full, {one.name}"
        yield FullLine(name, one, line, fit_exponent(line))
