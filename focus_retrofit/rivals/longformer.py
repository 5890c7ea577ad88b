"""Windows that widen from the first layer to the last, some heads dilated in the upper half: Longformer's pattern for
language models (Beltagy et al., 2020), with the sinks as its global tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Rival, Text
from .window import width_for

DILATED = 2  # heads, as in that paper


@dataclass
class Longformer(Rival):
    """Over all layers as many pairs as Focus computes."""

    name = "longformer"
    title = "Longformer"
    what = "widening windows, two heads dilated, global first tokens"

    def width(self, text: Text) -> int:
        """From the window of Focus up, linearly; on average what equal pairs allow."""
        middle = width_for(text.tokens, self.window, self.sinks, self.share)
        upward = text.layer / max(text.layers - 1, 1)
        return min(round(self.window + 2 * (middle - self.window) * upward), text.tokens - 1)

    def chosen(self, text: Text) -> Tensor:
        distance, width = text.distance(), self.width(text)
        mask = (distance <= width).expand(text.query.shape[0], -1, -1)
        if 2 * text.layer < text.layers:
            return mask
        dilated = (distance <= 2 * width) & (distance % 2 == 0)
        heads = torch.arange(mask.shape[0], device=mask.device) >= mask.shape[0] - min(DILATED, mask.shape[0] - 1)
        return torch.where(heads[:, None, None], dilated, mask)
