"""How far a best time may be off, from the times that it is the best of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .rows import FOCUS, FULL


def error_of_best(seconds: list[float]) -> float | None:
    """Relative standard error of the best of several times; unknown of one.

    A run takes what it takes, and waits for others. If the wait is as likely to end at any moment (exponential), the
    best of n is off by the mean wait over n, which (mean - best) / (n - 1) estimates.
    """
    if len(seconds) < 2:
        return None
    best = min(seconds)
    return (sum(seconds) / len(seconds) - best) / (len(seconds) - 1) / best


def row_errors(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Relative errors of a row's times, and of their quotient."""
    times = row.get("all") or {}
    full = error_of_best(times.get(f"{FULL}{row.get('full_method')}", []))
    focus = error_of_best(times.get(FOCUS, []))
    return {"full_seconds": full, "focus_seconds": focus, "speedup": together(full, focus)}


def together(*errors: float | None) -> float | None:
    """Relative error of a product or quotient; unknown where none is known."""
    known = [error for error in errors if error is not None]
    return math.hypot(*known) if known else None
