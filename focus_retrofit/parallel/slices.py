"""Who holds which tokens of a sequence: contiguous slices, one per rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from focus_kernels import FocusError


@dataclass(frozen=True)
class Slices:
    """Rank r holds positions [starts[r], starts[r + 1]) of each of `batch` sequences of `tokens` tokens.

    A token's number is row * tokens + position; on its owner it stands at row * held + (position - start).
    """

    starts: tuple[int, ...]  # [P + 1]
    rank: int
    batch: int = 1

    @property
    def ranks(self) -> int:
        return len(self.starts) - 1

    @property
    def tokens(self) -> int:
        return self.starts[-1]

    @property
    def start(self) -> int:
        return self.starts[self.rank]

    @property
    def held(self) -> int:
        return self.starts[self.rank + 1] - self.start

    @cached_property
    def ends(self) -> Tensor:
        return torch.tensor(self.starts[1:])

    def owners(self, numbers: Tensor) -> Tensor:
        """The rank that holds each of these tokens."""
        return torch.bucketize(numbers % self.tokens, self.ends, right=True)

    def places(self, numbers: Tensor) -> Tensor:
        """Where these tokens, all of this rank, stand among its own."""
        row = numbers.div(self.tokens, rounding_mode="floor")
        return row * self.held + (numbers % self.tokens - self.start)

    def numbers(self, positions: range) -> Tensor:
        """The tokens at these positions, of every row."""
        rows = torch.arange(self.batch)[:, None] * self.tokens
        return (rows + torch.arange(positions.start, positions.stop)).reshape(-1)


def even_starts(tokens: int, ranks: int) -> tuple[int, ...]:
    """Slices that differ by one token at most."""
    if tokens < ranks:
        raise FocusError(f"{tokens} tokens cannot be spread over {ranks} ranks: each needs one at least")
    return tuple(rank * tokens // ranks for rank in range(ranks + 1))
