"""Tokens that attend densely, one by one: the cache hands out all keys, in order, and the base attends to them.

A model pays for the base's work and little more. What Focus wants of these tokens, their groups and whether they are
finite, is made up for when the cache is used in any other way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from focus_kernels import KeyBuckets

if TYPE_CHECKING:
    from .cache import FocusLayer
    from .layer import Layer
    from .router import Router

AHEAD = 64  # tokens that there is room for at least, and that are routed at once


class Lane:
    """The next tokens of a batch whose rows are alike, kept in order behind all those that are in the buckets."""

    def __init__(self, buckets: KeyBuckets, router: Router):
        row = buckets.rows[0]
        buckets.make_room(min(AHEAD, buckets.hold - row.length))
        self.buckets, self.router = buckets, router
        self.start, self.first = row.start, row.start + row.count
        self.end, self.last = self.first, min(row.start + buckets.hold, buckets.recent.shape[3])
        self.keys = buckets.recent_key[..., : buckets.key_size]  # [B, H, room, D]
        self.values = buckets.recent_value[..., : buckets.value_size]
        self.shapes = tuple((*x.shape[:2], 1, x.shape[3]) for x in (self.keys, self.values))
        self.dtype = buckets.recent.dtype
        self.hidden: list[Tensor] = []  # of the tokens that are not routed yet
        self.groups: list[Tensor] = []  # of those that are

    @property
    def full(self) -> bool:
        return self.end == self.last

    def take(self, key: Tensor, value: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor] | None:
        """A token per row, [B, H, 1, D], and what to route it by, [B, 1, d]; gives all keys and values, or None where
        it is not such as the others are."""
        if (key.shape, value.shape) != self.shapes or not key.dtype == value.dtype == self.dtype:
            return None
        if self.buckets.dtype is not None:
            key, value = self.buckets.rounded(key), self.buckets.rounded(value)
        self.keys.narrow(2, self.end, 1).copy_(key)
        self.values.narrow(2, self.end, 1).copy_(value)
        self.end += 1
        if len(self.hidden) == AHEAD:
            self._route()
        self.hidden.append(hidden.clone())  # a model may go on in place
        count = self.end - self.start
        return self.keys.narrow(2, self.start, count), self.values.narrow(2, self.start, count)

    @torch.no_grad()
    def close(self) -> None:
        """All tokens into the buckets, as a chunk that was attended elsewhere."""
        if self.end > self.first:
            self._route()
            key, value = (x[:, :, self.first : self.end].clone() for x in (self.keys, self.values))
            self.buckets.prefill(key, value, torch.cat(self.groups, 1))

    @torch.no_grad()
    def _route(self) -> None:
        if self.hidden:
            groups = self.router.groups(self.router.logits(torch.cat(self.hidden, 1)))
            self.groups.append(groups.to(self.keys.device))
            self.hidden = []


def open_lane(layer: Layer, cache: FocusLayer) -> Lane | None:
    """For the next token of each row, if they are all early, alike, whole and in order; others go the general way."""
    buckets, router = cache.buckets, layer.router
    if cache.columns is not None or cache.offloaded or cache.config.leaks or layer.latent or router is None:
        return None
    if not buckets.rows or buckets.broken:
        return None
    places = {(row.start, row.count, row.length) for row in buckets.rows}
    length = buckets.rows[0].length
    if len(places) > 1 or buckets.rows[0].count != length or not buckets.sinks <= length < buckets.hold:
        return None
    return Lane(buckets, router)
