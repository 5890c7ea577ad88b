"""Bytes between processes: what a prefill sent, what it should send, and what ring attention would. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt

KINDS = ("groups", "sinks", "halo", "queries", "keys", "outputs")  # of a prefill
GROUP_BYTES = 2  # a group's number is sent as int16


@dataclass
class Traffic:
    """Bytes by kind that one rank sent to others."""

    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    def add(self, kind: str, count: int) -> None:
        self.sent[kind] = self.sent.get(kind, 0) + count

    @property
    def total(self) -> int:
        return sum(self.sent.values())


def ring_bytes(tokens: int, ranks: int, kv_heads: int, head_size: int, bytes_per_number: float) -> float:
    """What ring attention sends in a layer: every rank's keys and values pass all others."""
    return (ranks - 1) * tokens * 2 * kv_heads * head_size * bytes_per_number


def expected_traffic(
    tokens: int,
    ranks: int,
    num_groups: int,
    top_k: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    window: int,
    sinks: int,
    bytes_per_number: float,
) -> dict[str, float]:
    """Bytes that all ranks together send in one layer of a sequence-parallel prefill, by kind, with their 'total' and
    what 'ring' attention would send; for even groups whose tokens are spread evenly over the sequence.

    A row's cost is the number of its distant keys, which grows with its position: of a group's cost, the first share c
    lies in the first sqrt(c) of its rows beyond the window.
    """
    pair = 2 * kv_heads * head_size * bytes_per_number  # a key and its value
    row = heads * head_size * bytes_per_number  # a query, or an output
    weight = heads * (8 if bytes_per_number == 8 else 4)  # an output's logsumexp
    starts = [rank * tokens // ranks for rank in range(ranks + 1)]
    sent_rows = sent_keys = 0.0
    for rank in range(ranks):
        mine = (starts[rank], starts[rank + 1])
        stretch = list(_stretch(rank, tokens, ranks, num_groups, window))
        for _, end in stretch:  # keys: from the sinks on, up to the reach of the last row
            first, last = min(sinks, end - window), end - window
            sent_keys += (last - first - _overlap((first, last), mine)) / num_groups
        edges = sorted({*mine, *(edge for part in stretch for edge in part)})
        for low, high in pairwise(edges):
            if not mine[0] <= low < mine[1]:
                sent_rows += (high - low) * _visits(sum(a <= low < b for a, b in stretch), num_groups, top_k)
    found = {
        "groups": float((ranks - 1) * tokens * top_k * GROUP_BYTES),
        "sinks": (ranks - 1) * min(sinks, tokens) * pair,
        "halo": sum(min(window, start) for start in starts[1:-1]) * pair,
        "queries": sent_rows * row,
        "keys": sent_keys * pair,
        "outputs": sent_rows * (row + weight),
    }
    total = sum(found.values())
    return {**found, "total": total, "ring": ring_bytes(tokens, ranks, kv_heads, head_size, bytes_per_number)}


def _stretch(rank: int, tokens: int, ranks: int, num_groups: int, window: int) -> Iterator[tuple[float, float]]:
    """The rows that a rank works on, as (first, end) positions, one pair for each group it has a part in."""
    begin, end = rank * num_groups / ranks, (rank + 1) * num_groups / ranks  # of the total cost, a group's being 1
    beyond = max(tokens - window, 0)
    for group in range(int(begin), num_groups):
        low, high = max(begin - group, 0.0), min(end - group, 1.0)
        if high <= 1e-9:
            break
        if beyond and high - low > 1e-9:
            yield window + sqrt(low) * beyond, window + sqrt(high) * beyond


def _visits(held: int, num_groups: int, top_k: int) -> float:
    """Chance that at least one of a row's groups is among the `held` ones; it is sent once for all of them."""
    missed = 1.0
    for drawn in range(top_k):
        missed *= max(num_groups - held - drawn, 0) / (num_groups - drawn)
    return 1 - missed


def _overlap(a: tuple[float, float], b: tuple[float, float]) -> float:
    return max(min(a[1], b[1]) - max(a[0], b[0]), 0.0)
