"""Where the newest tokens of one row of a stream stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class NearView(NamedTuple):
    """Rows [begin, end) of a buffer as one row of a batch: key and value [1, H, n, D]."""

    buffer: Tensor
    begin: int
    end: int
    key: Tensor
    value: Tensor


@dataclass(slots=True)
class Recent:
    """The newest tokens of one row: [start, start + count) of its buffer; the first has position `first`.

    Decoding writes a new token where the oldest stood: then they begin at start + turn, and wrap around.
    """

    start: int = 0
    count: int = 0
    turn: int = 0
    fronted: int = 0  # sinks copied to the margin in front of `start`, for decoding
    length: int = 0  # tokens ever seen
    chunk: int = 0  # real tokens of the last chunk
    places: Tensor | None = None  # where they stood in the chunk, if some of it was padding
    near: NearView | None = None
    listed: list[int] | None = None  # groups of a chunk of one, where they are known without asking a tensor
    ids: list[list[int]] | None = None  # the same of all recent tokens, in the order in which they stand
    pending: int = 0  # newest tokens whose groups are only there
    read: int = 0  # keys that the last token read

    @property
    def first(self) -> int:
        return self.length - self.count

    def move(self, start: int, count: int) -> None:
        """What stood in front of `start` does no longer."""
        self.start, self.count, self.fronted = start, count, 0

    def newest(self, count: int) -> list[list[int]]:
        """Groups of the last `count` tokens by position, from `ids`."""
        ids = self.ids or []
        return (ids[self.turn :] + ids[: self.turn])[len(ids) - count :]
