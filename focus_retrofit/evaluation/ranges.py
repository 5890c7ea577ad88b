"""Losses by position in one long text: kept as means of short segments, from which ranges and their errors are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

SEGMENT = 128  # tokens whose losses are kept as one mean; taken as independent in standard errors


def segments(losses: Tensor) -> list[float]:
    """Means of whole segments; the last segment of a text of 2^n tokens lacks one loss, and counts all the same."""
    parts = [part for part in losses.double().split(SEGMENT) if len(part) >= SEGMENT - 1]
    return [round(float(part.mean()), 5) for part in parts]


def ranges(length: int, first: int = 1024) -> list[tuple[int, int]]:
    """Positions 0 to 1K, 1K to 2K, 2K to 4K, ... up to the length."""
    edges = [0]
    while (edge := first << (len(edges) - 1)) < length:
        edges.append(edge)
    return list(zip(edges, [*edges[1:], length], strict=True))


def in_range(texts: Sequence[Sequence[float]], begin: int, end: int) -> Tensor:
    """Segments of several texts between two positions, one after the other."""
    first, last = begin // SEGMENT, -(-end // SEGMENT)
    return torch.tensor([x for text in texts for x in text[first:last]], dtype=torch.float64)


def mean_and_error(losses: Tensor) -> dict[str, Any]:
    """Perplexity, with a standard error over segments."""
    value = losses.mean().exp().item()
    return {"perplexity": value, "standard_error": value * _error(losses)}


def paired(losses: Tensor, other: Tensor) -> dict[str, Any]:
    """Change of perplexity over another way to read the same segments, with its standard error."""
    difference = losses - other
    ratio = difference.mean().exp().item()
    return {"over": ratio - 1, "over_error": ratio * _error(difference)}


def _error(values: Tensor) -> float:
    return float(values.std() / len(values) ** 0.5) if len(values) > 1 else 0.0
