"""Windows that widen from the first layer to the last, some heads dilated in the upper half: Longformer's pattern for
language models (Beltagy et al., 2020), with the sinks as its global tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .base import Rival, Text
from .window import band_pairs

DILATED = 2  # heads, as in that paper


@dataclass
class Longformer(Rival):
    """Over all layers as many pairs as Focus computes."""

    name = "longformer"
    title = "Longformer"
    what = "widening windows, two heads dilated, global first tokens"

    def chosen(self, text: Text) -> Tensor:
        heads = text.query.shape[0]
        width = widths(text.tokens, text.layers, heads, self.window, self.sinks, self.share)[text.layer]
        distance = text.distance().abs()
        plain, dilated = (mask.to(distance.device)[distance] for mask in seen(text.tokens, width))
        first = heads - dilated_heads(text.layer, text.layers, heads)
        return torch.where((torch.arange(heads, device=distance.device) < first)[:, None, None], plain, dilated)


def dilated_heads(layer: int, layers: int, heads: int) -> int:
    """How many heads of a layer are dilated."""
    return min(DILATED, heads - 1) if 2 * layer >= layers else 0


def seen(tokens: int, width: int) -> tuple[Tensor, Tensor]:
    """Bool [tokens]: the distances that a plain head sees, and a dilated one: as many, twice as far."""
    distance = torch.arange(tokens)
    return distance <= width, (distance <= 2 * width) & (distance % 2 == 0)


@lru_cache(64)
def widths(tokens: int, layers: int, heads: int, window: int, sinks: int, share: float) -> list[int]:
    """A window for each layer, from that of Focus upwards, linearly, to the text's length at most: those whose pairs,
    over all layers and heads, are nearest to those of `window` plus `share` of what lies beyond."""

    def of(last: int) -> list[int]:
        return [min(window + round((last - window) * (n + 1) / layers), max(tokens - 1, window)) for n in range(layers)]

    def pairs(last: int) -> int:
        return sum(
            _pairs(tokens, w, window, sinks, heads, dilated_heads(n, layers, heads)) for n, w in enumerate(of(last))
        )

    near = band_pairs(tokens, window, sinks)
    wanted = layers * heads * (near + share * (tokens * (tokens + 1) // 2 - near))
    low, high = window, window + layers * tokens
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if pairs(middle) < wanted else (low, middle)
    return of(min(max(low - 1, window), low, key=lambda last: abs(pairs(last) - wanted)))


@lru_cache(4096)
def _pairs(tokens: int, width: int, window: int, sinks: int, heads: int, dilated: int) -> int:
    """Visible pairs of all heads of a layer."""
    distance, total = torch.arange(tokens), 0
    for count, mask in zip((heads - dilated, dilated), seen(tokens, width), strict=True):
        mask = mask | (distance <= window)
        hidden = (~mask).cumsum(0)  # of a key that sinks show: the queries that its distance hides it from
        shown = sum(int(hidden[tokens - 1 - key]) for key in range(min(sinks, tokens)))
        total += count * (int((mask * (tokens - distance)).sum()) + shown)
    return total
