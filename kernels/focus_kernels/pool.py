"""Growing lists of keys and values in one block of memory, each list contiguous: the far past, bucket by bucket."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Span:
    """Where one list stands: rows [start, start + used) of the pool, with room up to start + room."""

    start: int
    used: int
    room: int


class Pool:
    """Lists under any hashable name, [H, rows, D]; every start is a multiple of `align` (pages, on CUDA).

    A list that outgrows its room moves the pool: each list then gets an eighth of its length to spare.
    """

    def __init__(self, key: Tensor, value: Tensor, align: int):
        """Takes heads, sizes, dtype and device from [H, *, D] examples."""
        self.align = align
        self.key = key.new_empty(key.shape[0], 0, key.shape[2])
        self.value = value.new_empty(value.shape[0], 0, value.shape[2])
        self.spans: dict[tuple[int, ...], Span] = {}

    def append(self, name: tuple[int, ...], key: Tensor, value: Tensor) -> None:
        """Add rows [H, m, D] to the end of a list, which must have room for them (see `reserve`)."""
        span = self.spans[name]
        end = span.start + span.used
        self.key[:, end : end + key.shape[1]] = key
        self.value[:, end : end + key.shape[1]] = value
        span.used += key.shape[1]

    def reserve(self, more: dict[tuple[int, ...], int]) -> None:
        """Make room for this many more rows in each named list."""
        for name in more:
            self.spans.setdefault(name, Span(0, 0, 0))
        if all(self.spans[name].used + count <= self.spans[name].room for name, count in more.items()):
            return
        spans: dict[tuple[int, ...], Span] = {}
        start = 0
        for name in sorted(self.spans):  # an order that keeps a row's lists together, and starts increasing
            needed = self.spans[name].used + more.get(name, 0)
            room = -(-(needed + max(needed // 8, 16)) // self.align) * self.align
            spans[name] = Span(start, self.spans[name].used, room)
            start += room
        self.key = self._moved(self.key, spans, start)
        self.value = self._moved(self.value, spans, start)
        self.spans = spans

    def _moved(self, old: Tensor, spans: dict[tuple[int, ...], Span], rows: int) -> Tensor:
        new = old.new_empty(old.shape[0], rows, old.shape[2])
        if self.align > 1:
            new.zero_()  # a paged kernel reads whole pages: what it masks must be finite
        for name, span in spans.items():
            before = self.spans[name]
            new[:, span.start : span.start + span.used] = old[:, before.start : before.start + before.used]
        return new

    def memory(self) -> int:
        """Bytes held."""
        return sum(x.numel() * x.element_size() for x in (self.key, self.value))


def empty_like_rows(x: Tensor, rows: int) -> Tensor:
    """[B, H, rows, D] of the same kind as x [B, H, *, D]."""
    return torch.empty(x.shape[0], x.shape[1], rows, x.shape[3], dtype=x.dtype, device=x.device)
