"""Each query chooses the blocks whose mean key it likes best: MoBA's gate (Lu et al., 2025). Nothing is learned."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .base import Text
from .blocks import SIZE, Blocks, block_means


@dataclass
class MoBA(Blocks):
    """Reads a mean key per block for each query beside the pairs it computes."""

    name = "moba"
    choosing = 1 / (2 * SIZE)
    title = "MoBA blocks"
    what = "blocks by their mean key"

    def scores(self, text: Text, size: int) -> Tensor:
        return text.logits(keys=block_means(text, size, self.sinks))
