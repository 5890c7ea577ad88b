"""Keys that have drawn most attention so far are kept, the others are gone for good: H2O (Zhang et al., 2023). A method
for decoding: what is evicted frees the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Rival, Text, budgets


@dataclass
class H2O(Rival):
    name = "h2o"
    title = "H2O"
    what = "keys that drew most attention so far (decoding)"

    def chosen(self, text: Text) -> Tensor:
        """Row by row, as decoding would: attention is drawn only from queries that still saw the key."""
        tokens, window, sinks = text.tokens, self.window, self.sinks
        budget = budgets(text, self).tolist()
        logits = text.logits()
        drawn = logits.new_zeros(text.query.shape[0], tokens)
        kept = torch.zeros(drawn.shape, dtype=torch.bool, device=drawn.device)  # beyond the window and the sinks
        seen = torch.zeros(logits.shape, dtype=torch.bool, device=drawn.device)
        for row in range(tokens):
            leaving = row - window - 1
            if leaving >= sinks:
                kept[:, leaving] = True
                if int(kept[0].sum()) > budget[row]:  # as many in each head
                    worst = drawn[:, : leaving + 1].masked_fill(~kept[:, : leaving + 1], float("inf")).argmin(-1)
                    kept.scatter_(1, worst[:, None], False)
            seen[:, row] = kept
            visible = kept.clone()
            visible[:, max(row - window, 0) : row + 1] = True
            visible[:, : min(sinks, row + 1)] = True
            drawn += logits[:, row].masked_fill(~visible, float("-inf")).softmax(-1)
        return seen
