"""Blocks of keys, chosen by each query and head, at the cost of the pairs alone: one call per block, merged by
logsumexp with the window's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from focus_kernels.backends.cpu import AtenTiles

from .base import Rival, Text, best, budgets
from .window import band_pairs, near

SIZE = 64


@dataclass
class Blocks(Rival):
    """Override `scores`. A block may be chosen once it lies wholly before the window, so the parts are disjoint and
    a block's summary never holds a key that is yet to come."""

    engine = "blocks"

    def scores(self, text: Text, size: int) -> Tensor:
        """[Hq, n, blocks]: the higher, the rather chosen."""
        raise NotImplementedError

    def block(self, text: Text) -> int:
        return min(SIZE, self.window + 1)

    def allowed(self, text: Text, size: int) -> Tensor:
        """Bool [n, blocks]: may be chosen; blocks begin after the sinks, the last is whole."""
        count = max(text.tokens - self.sinks, 0) // size
        ends = torch.arange(1, count + 1, device=text.query.device) * size + self.sinks
        return ends <= torch.arange(text.tokens, device=text.query.device)[:, None] - self.window

    def picked(self, text: Text) -> Tensor:
        """Bool [Hq, n, blocks]"""
        size = self.block(text)
        return best(self.scores(text, size), self.allowed(text, size), budgets(text, self, size))

    def chosen(self, text: Text) -> Tensor:
        size, picked = self.block(text), self.picked(text)
        mask = torch.zeros(*picked.shape[:2], text.tokens, dtype=torch.bool, device=picked.device)
        mask[..., self.sinks : self.sinks + size * picked.shape[2]] = picked.repeat_interleave(size, -1)
        return mask

    def attend(self, text: Text) -> tuple[Tensor, float]:
        if not text.tiled:
            return super().attend(text)
        size, picked = self.block(text), self.picked(text)
        out, lse = near(text, self.window, self.sinks)
        for head, block in picked.any(1).nonzero().tolist():
            rows = picked[head, :, block].nonzero()[:, 0]
            keys = slice(self.sinks + block * size, self.sinks + (block + 1) * size)
            group = head // text.repeat
            query = text.query[head, rows][None, None]
            key, value = text.key[group, keys][None, None], text.value[group, keys][None, None]
            more, more_lse = AtenTiles.forward(query, key, value, scale=text.scale)
            fold_(out[head], lse[head], rows, more[0, 0], more_lse[0, 0])
        return out, band_pairs(text.tokens, self.window, self.sinks) + int(picked.sum()) * size / len(picked)


def fold_(out: Tensor, lse: Tensor, rows: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Merge more [m, D] into rows of out [n, D]."""
    old = lse[rows]
    out[rows] = torch.lerp(out[rows], more, torch.sigmoid(more_lse - old)[:, None].to(more.dtype))
    lse[rows] = torch.logaddexp(old, more_lse)


def block_means(text: Text, size: int, sinks: int) -> Tensor:
    """[Hkv, blocks, D]: the mean key of each whole block after the sinks."""
    count = max(text.tokens - sinks, 0) // size
    return text.key[:, sinks : sinks + count * size].unflatten(1, (count, size)).mean(2)
