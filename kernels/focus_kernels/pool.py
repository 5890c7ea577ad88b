"""Growing lists of keys and values in one block of memory, each list contiguous: the far past, bucket by bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .scratch import lasting
from .spill import Mapped, mapped
from .tiles import take

Name = tuple[int, ...]
PAGE = 256  # rows of a page of FlashAttention-2
SLACK = 16  # a list that moves gets a sixteenth of its length to spare
LEAST = 16  # rows to spare at least
FORESIGHT = 16  # a list's share of a text so many times as long can be told from what is there; of a longer one, later


@dataclass(slots=True)
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
    """Lists by name, [H, rows, D]; every start is a multiple of `align` (pages, on CUDA).

    A list that outgrows its room moves the pool: each list then gets a part of its length to spare or, where it is
    known how long all of them are going to be, room for its share of that: to move a pool that is nearly full takes
    twice its memory. A name of a single number is that of a row's sinks, which stay few.
    """

    def __init__(self, example: Tensor, align: int, dtype: torch.dtype | None = None, directory: str | None = None):
        """Takes heads, size and device from an example [H, *, D], and the dtype unless one is given; with a directory
        the rows are in a file there."""
        self.align, self.directory = align, directory
        self.data = example.new_empty(2, example.shape[0], 0, example.shape[2], dtype=dtype)
        self.spans: dict[Name, Span] = {}
        self.growth = 1.0  # how many times longer the lists are going to be
        self.file: Mapped | None = None

    @property
    def data(self) -> Tensor:
        """Keys and values, [2, H, rows, D]."""
        return self._data

    @data.setter
    def data(self, data: Tensor) -> None:
        self._data = data
        self.key, self.value = data
        self.batched = data.unsqueeze(1)  # [2, 1, H, rows, D], as one row of a batch

    def gather(self, moves: list[Move]) -> None:
        """Carry out all moves, in their order: each row is copied once, straight to its place."""
        if not moves:
            return
        more: dict[Name, int] = {}
        for move in moves:
            more[move.name] = more.get(move.name, 0) + move.places.numel()
        self.reserve(more)
        for name, key, value, index in moves:
            span = self.spans[name]
            new_key, new_value = self.data.narrow(2, span.start + span.used, index.numel())
            for rows, new in ((key, new_key), (value, new_value)):
                if rows.dtype == new.dtype:
                    take(rows, index, new)
                else:
                    new.copy_(take(rows, index))
            span.used += index.numel()

    def reserve(self, more: dict[Name, int]) -> None:
        """Make room for this many more rows in each named list."""
        for name in more:
            self.spans.setdefault(name, Span(0, 0, 0))
        if any(self.spans[name].used + count > self.spans[name].room for name, count in more.items()):
            self.rebuild({name: name for name in self.spans}, more)

    @lasting
    def rebuild(self, sources: dict[Name, Name], more: dict[Name, int] | None = None) -> None:
        """Lay the pool out anew: each new list is a copy of the old one given for it, with room for `more` rows."""
        spans: dict[Name, Span] = {}
        start, grown = 0, self.growth if self.growth <= FORESIGHT else self.growth**0.5
        for name in sorted(sources):  # an order that keeps a row's lists together, and starts increasing
            used = self.spans[sources[name]].used
            needed = used + (more or {}).get(name, 0)
            more_to_come = max(int(needed * (grown * (1 + 1 / SLACK) - 1)), LEAST) if len(name) > 1 else 0
            room = -(-(needed + more_to_come) // self.align) * self.align
            spans[name] = Span(start, used, room)
            start += room
        data, file = self._make(2, self.data.shape[1], start, self.data.shape[3])
        if self.align > 1:
            data.zero_()  # a paged kernel reads whole pages: what it masks must be finite
        for name, span in spans.items():
            before = self.spans[sources[name]]
            data.narrow(2, span.start, span.used).copy_(self.data.narrow(2, before.start, span.used))
        self.data, self.spans, self.file = data, spans, file

    def _make(self, *shape: int) -> tuple[Tensor, Mapped | None]:
        if self.directory is None:
            return self.data.new_empty(shape), None
        file = mapped(self.directory, shape, self.data.dtype)
        return file.tensor, file

    def release(self) -> None:
        """Rows in a file leave memory until they are read again."""
        if self.file is not None:
            self.file.release()

    def memory(self) -> int:
        """Bytes held, in memory or in a file."""
        return self.data.numel() * self.data.element_size()


def page_of(device: torch.device) -> int:
    """What the device's kernels want a list of keys to start at a multiple of."""
    return 1 if device.type == "cpu" else PAGE


def held_size(size: int, page: int) -> int:
    """The head size that is held: a multiple of 8 where kernels read pages."""
    unit = 1 if page == 1 else 8
    return -(-size // unit) * unit
