"""Two benchmark files against each other, row by row: what moved, and what is only noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from focus_kernels.errors import FocusError

from .growth import cost_growth
from .noise import row_errors, together

KEY = ("part", "tokens", "setup")
# measure -> what it is called when it falls, and when it rises
VERDICTS = {
    "speedup": ("slower", "faster"),
    "focus_seconds": ("faster", "slower"),
    "full_seconds": ("faster", "slower"),
    "memory": ("less", "more"),
    "focus_bytes": ("less", "more"),
    "full_bytes": ("less", "more"),
    "density": ("less", "more"),
}
SECONDS = ("focus_seconds", "full_seconds")
THRESHOLD = 0.05
SURE = 2.0  # standard errors


def compare_benches(a: Mapping[str, Any], b: Mapping[str, Any], threshold: float = THRESHOLD) -> dict[str, Any]:
    """What `b` makes of the rows that both records have (`read_bench`), what moved most first.

    rows: each with `moved`, its measures as {first, second, ratio, error, margin, verdict}, ratio being second over
    first. A measure moved if its ratio is beyond `threshold` and beyond two standard errors of the timings. `verdict`
    of a row is that of its speedup, a ratio within a run that may be compared over machines; of seconds there is a
    verdict where machine and threads agree. only_first, only_second: rows without a counterpart. growth: exponents.
    """
    if not threshold >= 0:
        raise FocusError(f"threshold is {threshold!r}; it must be a share such as 0.05, at least 0")
    old, new = _by_key(a), _by_key(b)
    common = [key for key in old if key in new]
    if not common:
        raise FocusError(
            f"the two files have no row in common (same part, tokens and setup): one has {_brief(old)}, the other "
            f"{_brief(new)}"
        )
    same = a.get("machine") == b.get("machine")
    rows = [_compared(old[key], new[key], same, threshold) for key in common]
    return {
        "threshold": threshold,
        "same_machine": all(row["same_machine"] for row in rows),
        "rows": sorted(rows, key=how_far, reverse=True),
        "only_first": [_named(old[key]) for key in old if key not in new],
        "only_second": [_named(new[key]) for key in new if key not in old],
        "growth": _growth(a, b),
    }


def how_far(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
    """For sorting: speedups that moved first, then whatever else moved, by the largest change."""
    far = {
        name: abs(math.log(one["ratio"])) for name, one in row["moved"].items() if one["verdict"] not in (None, "same")
    }
    return "speedup" in far, bool(far), max(far.values(), default=abs(math.log(row["moved"]["speedup"]["ratio"])))


def _compared(old: Mapping[str, Any], new: Mapping[str, Any], same_machine: bool, threshold: float) -> dict[str, Any]:
    same = same_machine and old.get("threads") == new.get("threads")
    errors = row_errors(old), row_errors(new)
    moved = {}
    for name, words in VERDICTS.items():
        first, second = old.get(name), new.get(name)
        if not first or not second:
            continue
        ratio, error = second / first, together(*(found.get(name) for found in errors))
        margin = max(threshold, SURE * (error or 0.0))
        verdict = None if name in SECONDS and not same else _verdict(ratio, margin, words)
        moved[name] = {
            "first": first,
            "second": second,
            "ratio": ratio,
            "error": error,
            "margin": margin,
            "verdict": verdict,
        }
    return {**_named(old), "same_machine": same, "verdict": moved["speedup"]["verdict"], "moved": moved}


def _verdict(ratio: float, margin: float, words: tuple[str, str]) -> str:
    if abs(math.log(ratio)) <= math.log1p(margin):
        return "same"
    return words[ratio > 1]


def _growth(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Exponents of both files, of the series that both have and could be fitted."""
    new = {(one["part"], one["setup"]): one for one in cost_growth(b["rows"])}
    found = []
    for one in cost_growth(a["rows"]):
        other = new.get((one["part"], one["setup"]))
        if other is not None and one["focus_seconds"] is not None and other["focus_seconds"] is not None:
            pairs = {name: [one[name], other[name]] for name in SECONDS}
            found.append({"part": one["part"], "setup": one["setup"], **pairs})
    return found


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in KEY}


def _by_key(record: Mapping[str, Any]) -> dict[tuple[Any, ...], Any]:
    return {tuple(row[name] for name in KEY): row for row in record["rows"]}


def _brief(rows: dict[tuple[Any, ...], Any]) -> str:
    setups = sorted({f"{part} of {setup}" for part, _, setup in rows})
    lengths = sorted({tokens for _, tokens, _ in rows})
    return f"{'; '.join(setups)} at {lengths}" if rows else "no rows"
