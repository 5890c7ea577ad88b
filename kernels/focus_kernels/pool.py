"""Growing lists of keys and values in one block of memory, each list contiguous: the far past, bucket by bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .tiles import take

Name = tuple[int, ...]
PAGE = 256  # rows of a page of FlashAttention-2
SLACK = 16  # a list that moves gets a sixteenth of its length to spare
LEAST = 16  # rows to spare at least


@dataclass
class Span:
    """Where one list stands: rows [start, start + used) of the pool, with room up to start + room."""

    start: int
    used: int
    room: int


class Move(NamedTuple):
    """Rows on their way to the end of a list: those at `places` of key and value [H, *, D]."""

    name: Name
    key: Tensor
    value: Tensor
    places: Tensor


class Pool:
    """Lists under any hashable name, [H, rows, D]; every start is a multiple of `align` (pages, on CUDA).

    A list that outgrows its room moves the pool: each list then gets a part of its length to spare.
    """

    def __init__(self, key: Tensor, value: Tensor, align: int):
        """Takes heads, sizes, dtype and device from [H, *, D] examples."""
        self.align = align
        self.key = key.new_empty(key.shape[0], 0, key.shape[2])
        self.value = value.new_empty(value.shape[0], 0, value.shape[2])
        self.spans: dict[Name, Span] = {}

    def append(self, name: Name, key: Tensor, value: Tensor) -> None:
        """Add rows [H, m, D] to the end of a list, which must have room for them (see `reserve`)."""
        span = self.spans[name]
        end = span.start + span.used
        self.key[:, end : end + key.shape[1]] = key
        self.value[:, end : end + key.shape[1]] = value
        span.used += key.shape[1]

    def gather(self, moves: list[Move]) -> None:
        """Carry out all moves, in their order: each row is copied once, straight to its place."""
        more: dict[Name, int] = {}
        for move in moves:
            more[move.name] = more.get(move.name, 0) + move.places.numel()
        self.reserve(more)
        for name, key, value, index in moves:
            span = self.spans[name]
            end = span.start + span.used
            take(key, index, self.key[:, end : end + index.numel()])
            take(value, index, self.value[:, end : end + index.numel()])
            span.used += index.numel()

    def reserve(self, more: dict[Name, int]) -> None:
        """Make room for this many more rows in each named list."""
        for name in more:
            self.spans.setdefault(name, Span(0, 0, 0))
        if any(self.spans[name].used + count > self.spans[name].room for name, count in more.items()):
            self.rebuild({name: name for name in self.spans}, more)

    def rebuild(self, sources: dict[Name, Name], more: dict[Name, int] | None = None) -> None:
        """Lay the pool out anew: each new list is a copy of the old one given for it, with room for `more` rows."""
        spans: dict[Name, Span] = {}
        start = 0
        for name in sorted(sources):  # an order that keeps a row's lists together, and starts increasing
            used = self.spans[sources[name]].used
            needed = used + (more or {}).get(name, 0)
            room = -(-(needed + max(needed // SLACK, LEAST)) // self.align) * self.align
            spans[name] = Span(start, used, room)
            start += room
        self.key, self.value = (self._moved(x, sources, spans, start) for x in (self.key, self.value))
        self.spans = spans

    def _moved(self, old: Tensor, sources: dict[Name, Name], spans: dict[Name, Span], rows: int) -> Tensor:
        new = old.new_empty(old.shape[0], rows, old.shape[2])
        if self.align > 1:
            new.zero_()  # a paged kernel reads whole pages: what it masks must be finite
        for name, span in spans.items():
            before = self.spans[sources[name]]
            new[:, span.start : span.start + span.used] = old[:, before.start : before.start + before.used]
        return new

    def memory(self) -> int:
        """Bytes held."""
        return sum(x.numel() * x.element_size() for x in (self.key, self.value))


def empty_like_rows(x: Tensor, rows: int) -> Tensor:
    """[B, H, rows, D] of the same kind as x [B, H, *, D]."""
    return torch.empty(x.shape[0], x.shape[1], rows, x.shape[3], dtype=x.dtype, device=x.device)


def page_of(device: torch.device) -> int:
    """What the device's kernels want a list of keys to start at a multiple of."""
    return 1 if device.type == "cpu" else PAGE


def held_size(size: int, page: int) -> int:
    """The head size that is held: a multiple of 8 where kernels read pages."""
    unit = 1 if page == 1 else 8
    return -(-size // unit) * unit
