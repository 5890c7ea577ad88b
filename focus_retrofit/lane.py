"""Where the tokens of a short text are, in order: while all of them attend densely, the base attends to all keys.

A model pays for the base's work and little more. What Focus wants of these tokens beside their groups, the order of
buckets and whether they are finite, is made up for when the cache is used in any other way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from focus_kernels import KeyBuckets
from focus_kernels.scratch import lasting

if TYPE_CHECKING:
    from .router import Router

FEW = 1 << 18  # numbers that are kept as they came: hidden states to route by, the keys of a first chunk
ROOM = 32  # more tokens that there is room for at least
AHEAD = 64  # tokens that are routed at once, if their hidden states are few numbers


class Lane:
    """All tokens of a batch, [B, H, n, D], with room for more; a stream is here or in its buckets."""

    def __init__(self, key: Tensor, value: Tensor, groups: Tensor | None = None, real: Tensor | None = None):
        """A first chunk; groups [B, c, k], unless `route_later` says what to find them by; real [B, c] says which of it
        are tokens, None: all. Few are kept as they came until another comes: copying them takes longer than to attend.
        Not on a GPU, where the next call of a captured graph would write over them."""
        self.count, self.real = key.shape[2], real
        few = key.is_cpu and key.numel() <= FEW
        self._keep(*((key.detach(), value.detach()) if few else _longer(key, value)))
        self.groups = [] if groups is None else [groups]
        self.hidden: list[Tensor] = []  # of the tokens that are not routed yet
        self.router: Router | None = None  # which routes them
        self.waiting = 0  # how many of them came one by one

    def _keep(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values, self.room, self.dtype = keys, values, keys.shape[2], keys.dtype
        self.shapes = tuple((*x.shape[:2], 1, x.shape[3]) for x in (keys, values))  # of a token

    def route_later(self, hidden: Tensor, router: Router) -> None:
        """The newest tokens, by what is theirs alone, [B, c, d]."""
        self.hidden.append(hidden)
        self.router = router

    def take(self, key: Tensor, value: Tensor, hidden: Tensor, router: Router) -> tuple[Tensor, Tensor] | None:
        """A token per row, [B, H, 1, D], and what to route it by, [B, 1, d]; gives all keys and values, or None where
        it is not such as the others are."""
        if (key.shape, value.shape) != self.shapes or not key.dtype == value.dtype == self.dtype:
            return None
        if self.count == self.room:
            self._keep(*_longer(self.keys, self.values))
        keys, values, count = self.keys, self.values, self.count
        keys.narrow(2, count, 1).copy_(key)
        values.narrow(2, count, 1).copy_(value)
        self.count = count = count + 1
        if self.waiting == AHEAD or self.waiting * hidden.numel() > FEW:
            self._route()
        self.route_later(hidden, router)
        self.waiting += 1
        return keys.narrow(2, 0, count), values.narrow(2, 0, count)

    @torch.no_grad()
    def select(self, rows: Tensor) -> None:
        """Make the batch these rows, in this order."""
        here = rows.to(self.keys.device)
        self._keep(*(lasting(x.index_select)(0, here) for x in (self.keys, self.values)))
        for kept in (self.groups, self.hidden):
            if kept:
                kept[:] = [torch.cat(kept, 1).index_select(0, rows.to(kept[0].device))]
        self.real = None if self.real is None else self.real[rows.to(self.real.device)]

    def memory(self) -> int:
        """Bytes held."""
        return sum(x.numel() * x.element_size() for x in (self.keys, self.values, *self.groups, *self.hidden))

    @torch.no_grad()
    def close(self, buckets: KeyBuckets) -> None:
        """All tokens into buckets that are empty."""
        self._route()
        key, value = (x.narrow(2, 0, self.count) for x in (self.keys, self.values))
        buckets.prefill(key, value, torch.cat(self.groups, 1), self.real)

    @torch.no_grad()
    def _route(self) -> None:
        if self.hidden and self.router is not None:
            groups = self.router.groups(self.router.logits(torch.cat(self.hidden, 1)))
            self.groups.append(groups.to(self.keys.device))
            self.hidden, self.waiting = [], 0


@lasting
def _longer(*parts: Tensor) -> list[Tensor]:
    """A copy of each, [B, H, n, D], with room for more after it."""
    copies = []
    for x in parts:
        batch, heads, tokens, size = x.shape
        copies.append(x.new_empty(batch, heads, tokens + max(tokens // 12, ROOM), size))
        copies[-1].narrow(2, 0, tokens).copy_(x)
    return copies
