"""Rows of tokens on their way between ranks: everybody knows who needs what, so only the rows themselves are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .slices import Slices
from .traffic import Traffic


@dataclass
class Link:
    """A process group, and the bytes that this rank sent through it."""

    group: Any  # None is the whole world
    traffic: Traffic

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def ranks(self) -> int:
        return dist.get_world_size(self.group)

    def swap(self, kind: str, parts: Sequence[Tensor], sizes: Sequence[int]) -> Swap:
        """Begin to send parts[r] [n_r, F] to rank r and to receive sizes[r] rows from it; what stays is not sent."""
        mine = parts[self.rank]
        unit = prod(mine.shape[1:]) * mine.element_size()
        counts = [0 if rank == self.rank else size for rank, size in enumerate(sizes)]
        away = [part[: 0 if rank == self.rank else None] for rank, part in enumerate(parts)]
        # as bytes: not every backend knows every dtype
        out = torch.cat(away).contiguous().view(-1).view(torch.uint8)
        into = out.new_empty(sum(counts) * unit)
        self.traffic.add(kind, out.numel())
        sent, received = [len(part) * unit for part in away], [count * unit for count in counts]
        work = dist.all_to_all_single(into, out, received, sent, group=self.group, async_op=True)
        return Swap(work, into, out, mine, counts, self.rank)


@dataclass
class Swap:
    """An exchange that is under way."""

    work: Any
    into: Tensor
    out: Tensor  # must live until the end
    mine: Tensor
    counts: list[int]
    rank: int

    def wait(self) -> Tensor:
        """All rows [n, ...], rank after rank, one's own among them."""
        self.work.wait()
        rows = self.into.view(self.mine.dtype).view(sum(self.counts), *self.mine.shape[1:])
        parts = list(rows.split(self.counts))
        parts[self.rank] = self.mine
        return torch.cat(parts)


class Route:
    """Who needs which tokens: needed[r] are the numbers of those that rank r asks for, in its order."""

    def __init__(self, needed: Sequence[Tensor], slices: Slices, device: torch.device):
        self.send: list[Tensor] = []  # for each rank, the places of its tokens among ours
        for rank, numbers in enumerate(needed):
            owners = slices.owners(numbers)
            self.send.append(slices.places(numbers[owners == slices.rank]).to(device))
            if rank == slices.rank:
                self.order = owners.argsort(stable=True).to(device)  # rank after rank, each in our order
                self.receive: list[int] = torch.bincount(owners, minlength=slices.ranks).tolist()

    def fetch(self, link: Link, kind: str, held: Tensor) -> Fetch:
        """Begin to bring the rows of held [n, ...] to those who need them."""
        return Fetch(link.swap(kind, [held[places] for places in self.send], self.receive), self)

    def give_back(self, link: Link, kind: str, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The other way: what was made of the rows that we needed goes to their owners -> for each rank, (places among
        our tokens, what it made of them)."""
        parts = list(rows[self.order].split(self.receive))
        sizes = [places.numel() for places in self.send]
        return list(zip(self.send, link.swap(kind, parts, sizes).wait().split(sizes), strict=True))


@dataclass
class Fetch:
    """Rows that are on their way."""

    swap: Swap
    route: Route

    def wait(self) -> Tensor:
        """The rows that we need, in our order."""
        rows = self.swap.wait()
        return torch.empty_like(rows).index_copy_(0, self.route.order, rows)
