"""Each query guesses all its logits from its largest components, then reads the keys that look best: SparQ (Ribar et
al., 2023), without its correction by the mean value. A method for decoding: it saves memory traffic, not
whole-sequence work."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Rival, Text, best, budgets

PART = 8  # an eighth of a key's components is read for the guess


@dataclass
class SparQ(Rival):
    name = "sparq"
    choosing = 1 / (2 * PART)  # of each key, and of no value
    title = "SparQ"
    what = "keys by approximate logits (decoding)"

    def chosen(self, text: Text) -> Tensor:
        size = text.query.shape[2]
        large = text.query.abs().topk(max(size // PART, 1), -1).indices
        guess = torch.zeros_like(text.query).scatter_(-1, large, text.query.gather(-1, large))
        place = torch.arange(text.tokens, device=text.query.device)
        allowed = (text.distance() > self.window) & (place >= self.sinks)
        return best(text.logits(guess), allowed, budgets(text, self))
