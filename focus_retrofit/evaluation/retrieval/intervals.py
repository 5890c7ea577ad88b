"""How sure a share of few items is, and a difference of two methods on the same items."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

Z = 1.959964  # 95 %


def wilson(right: float, count: int) -> tuple[float, float]:
    """95 % interval of a share. Scores between 0 and 1 may be summed too: then it is wider than need be."""
    share = right / count
    middle = share + Z * Z / (2 * count)
    half = Z * sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    scale = 1 + Z * Z / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float | list[float]]:
    """Difference of scores of the same items, what was won and lost, and its 95 % interval after Bonett and Price: as
    if one more item had been won and one more lost, so that few items without a difference are no proof of none."""
    changes = [a - b for a, b in zip(ours, theirs, strict=True)]
    count = len(changes)
    won, lost = sum(max(x, 0.0) for x in changes), sum(max(-x, 0.0) for x in changes)
    up, down = (won + 1) / (count + 2), (lost + 1) / (count + 2)
    half = Z * sqrt((up + down - (up - down) ** 2) / (count + 2))
    interval = [max(-1.0, up - down - half), min(1.0, up - down + half)]
    return {"difference": sum(changes) / count, "won": won, "lost": lost, "interval": interval}


def mean_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1) / len(values))
