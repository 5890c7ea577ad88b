"""A window and the sinks, nothing else: StreamingLLM's pattern (Xiao et al., 2023), at the model's own positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from focus_kernels.backends.cpu import AtenTiles

from .base import Rival, Text


@dataclass
class Window(Rival):
    """The window that Focus has, so that its groups are all that is missing."""

    name = "window"
    title = "window and sinks only"
    what = "window and sinks only"
    engine = "blocks"

    def width(self, text: Text) -> int:
        return self.window

    def chosen(self, text: Text) -> Tensor:
        return (text.distance() <= self.width(text))[None]

    def attend(self, text: Text) -> tuple[Tensor, float]:
        if not text.tiled:
            return super().attend(text)
        width = self.width(text)
        return near(text, width, self.sinks)[0], band_pairs(text.tokens, width, self.sinks)


@dataclass
class Wide(Window):
    """The strongest form of the same: a window so wide that it holds as many pairs as Focus computes."""

    name = "wide"
    title = "wide window"
    what = "a wider window and sinks, as many pairs as Focus"

    def width(self, text: Text) -> int:
        return width_for(text.tokens, self.window, self.sinks, self.share)


def band_pairs(tokens: int, width: int, sinks: int) -> int:
    """Visible pairs of a window and sinks."""
    beyond = max(tokens - width - 1, 0)  # queries that do not see everything
    seen = tokens * (tokens + 1) // 2 - beyond * (beyond + 1) // 2
    return seen + sum(min(sinks, n) for n in range(1, min(beyond, sinks) + 1)) + max(beyond - sinks, 0) * sinks


def width_for(tokens: int, window: int, sinks: int, share: float) -> int:
    """The window whose pairs are nearest to those of `window` plus `share` of what lies beyond."""
    total, near = tokens * (tokens + 1) // 2, band_pairs(tokens, window, sinks)
    wanted = near + share * (total - near)
    low, high = window, max(tokens - 1, window)
    while low < high:
        middle = (low + high) // 2
        if band_pairs(tokens, middle, sinks) < wanted:
            low = middle + 1
        else:
            high = middle
    lower = max(low - 1, window)
    return min(lower, low, key=lambda width: abs(band_pairs(tokens, width, sinks) - wanted))


def near(text: Text, width: int, sinks: int) -> tuple[Tensor, Tensor]:
    """Window and sinks: output [Hq, n, D] and logsumexp [Hq, n], in blocks of queries, each against its own keys."""
    step = max(width, 64)
    outs, lses = [], []
    for begin in range(0, text.tokens, step):
        end, first = min(begin + step, text.tokens), max(begin - width, 0)
        keys = torch.cat([torch.arange(min(sinks, first)), torch.arange(first, end)])
        distance = torch.arange(begin, end)[:, None] - keys
        seen = (distance >= 0) & ((distance <= width) | (keys < sinks))
        mask = torch.zeros(seen.shape, dtype=text.query.dtype).masked_fill(~seen, float("-inf"))
        out, lse = AtenTiles.forward(
            text.query[None, :, begin:end],
            text.key[None, :, keys],
            text.value[None, :, keys],
            scale=text.scale,
            mask=mask[None, None],
        )
        outs.append(out[0])
        lses.append(lse[0])
    return torch.cat(outs, 1), torch.cat(lses, 1)
