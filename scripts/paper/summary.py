"""Means and 95% intervals over windows and seeds, paired where cells saw the same windows; nothing is picked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

Settings = dict[str, Any]
MEANS = (
    "density", "distant", "largest_group", "elsewhere", "adjusted_information", "purity", "parameters", "truthfulqa_mc1"
)  # fmt: skip
SAME = 0.05  # an interval that goes farther from 0 does not show that two settings are alike


@dataclass(frozen=True)
class Claim:
    """What the paper found of two settings: by `measure`, `a` is 'less' than `b`, 'more', or the 'same'; apart by less
    than `least`, they do not differ as the paper means it."""

    says: str
    a: Settings
    expect: Literal["less", "more", "same"]
    b: Settings
    measure: str = "perplexity"
    least: float = 0.0


@dataclass(frozen=True)
class Difference:
    """Of two settings: their mean difference and half of its 95% interval, None where there is one sample alone."""

    mean: float
    half: float | None

    def verdict(self, expect: str, least: float = 0.0) -> str:
        if expect != "same" and abs(self.mean) < least:
            return f"disagrees (less than {least:.0%} apart)"
        if self.half is None:
            same = {"less": self.mean < 0, "more": self.mean > 0, "same": False}[expect]
            return (
                "undecided (one sample)" if expect == "same" else ("agrees" if same else "disagrees") + " (one sample)"
            )
        clear = abs(self.mean) > self.half
        if expect == "same":
            if not clear and abs(self.mean) + self.half > SAME:
                return f"undecided (the interval goes beyond {SAME:.0%})"
            return "disagrees" if clear else "agrees (no difference beyond the interval)"
        if not clear:
            return "undecided (the interval has both signs)"
        return "agrees" if (self.mean < 0) == (expect == "less") else "disagrees"


def half_width(values: Sequence[float]) -> float | None:
    """Half of Student's 95% interval of a mean."""
    if len(values) < 2:
        return None
    from scipy.stats import t  # type: ignore[import-untyped]

    return float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def measured(cell: dict[str, Any], measure: str) -> bool:
    return ("losses" if measure == "perplexity" else measure) in cell


def samples(cell: dict[str, Any], measure: str) -> list[float]:
    """What a cell has for each window: losses for a perplexity; or the one number there is."""
    name = "losses" if measure == "perplexity" else f"{measure}_by_window"
    found = cell.get(name)
    return list(found) if found else [cell[measure]]


def by_window(cells: Sequence[dict[str, Any]], measure: str) -> list[float]:
    """Means over seeds."""
    return [fmean(column) for column in zip(*(samples(cell, measure) for cell in cells), strict=True)]


def difference(a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]], measure: str = "perplexity") -> Difference:
    """a - b (of a perplexity: of its logarithm), paired by window and, where both have several, by seed; the interval
    is the wider of the one over windows and the one over seeds."""
    windows = [x - y for x, y in zip(by_window(a, measure), by_window(b, measure), strict=True)]
    halves = [half_width(windows)]
    if len(a) > 1 or len(b) > 1:
        mean_a, mean_b = ({cell["seed"]: fmean(samples(cell, measure)) for cell in cells} for cells in (a, b))
        if len(b) == 1:
            seeds = [value - fmean(mean_b.values()) for value in mean_a.values()]
        elif len(a) == 1:
            seeds = [fmean(mean_a.values()) - value for value in mean_b.values()]
        else:
            seeds = [mean_a[seed] - mean_b[seed] for seed in mean_a if seed in mean_b]
        halves.append(half_width(seeds))
    known = [half for half in halves if half is not None]
    return Difference(fmean(windows), max(known) if known else None)


def settings_of(cell: dict[str, Any]) -> Settings:
    return {name: value for name, value in cell["settings"].items() if name != "seed"}


def of_settings(cells: Iterable[dict[str, Any]], wanted: Settings) -> list[dict[str, Any]]:
    """The seeds of one setting."""
    return [cell for cell in cells if settings_of(cell) == wanted]


def summarise(cells: Sequence[dict[str, Any]], against: Any) -> list[dict[str, Any]]:
    """A row for each setting: means, intervals, and the paired difference from what `against`(settings) names."""
    found: list[Settings] = []
    for cell in cells:
        if settings_of(cell) not in found:
            found.append(settings_of(cell))
    rows = []
    for settings in found:
        same = of_settings(cells, settings)
        row: dict[str, Any] = {"settings": settings, "seeds": [cell["seed"] for cell in same]}
        row.update({name: fmean(c[name] for c in same) for name in MEANS if all(name in c for c in same)})
        if "losses" in same[0]:
            row.update(_perplexity(same))
        base = of_settings(cells, against(settings))
        if base and against(settings) != settings and "losses" in base[0]:
            found_difference = difference(same, base)
            row["over"] = math.exp(found_difference.mean) - 1
            half = found_difference.half
            row["over_interval"] = None if half is None else [
                math.exp(found_difference.mean + sign * half) - 1 for sign in (-1, 1)
            ]  # fmt: skip
        rows.append(row)
    return rows


def _perplexity(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    windows, seeds = by_window(cells, "perplexity"), [fmean(cell["losses"]) for cell in cells]
    return {
        "perplexity": math.exp(fmean(windows)),
        "interval_over_windows": _interval(windows),
        "interval_over_seeds": _interval(seeds),
    }


def _interval(losses: Sequence[float]) -> list[float] | None:
    half = half_width(losses)
    return None if half is None else [math.exp(fmean(losses) - half), math.exp(fmean(losses) + half)]
