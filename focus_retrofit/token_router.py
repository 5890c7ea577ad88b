"""A router as decoding asks it: one matrix, in few calls."""

from __future__ import annotations

import torch
from torch import Tensor

from focus_kernels.scratch import lasting

from .router import Router


class TokenRouter:
    """Made of a layer's router when a cache's first token is decoded, and kept with the cache: what the groups of its
    tokens come from does not change under way."""

    @lasting
    def __init__(self, router: Router):
        config = router.config
        self.map = router.projection.float() @ router.centroids.float().T / config.tau  # [d, K]
        self.start = router.potentials.float() * (config.balance == "potentials")
        self.count = router.top_k

    def groups(self, hidden: Tensor) -> list[list[int]]:
        """hidden [B, 1, d] -> the k best groups of each row's token, best first."""
        logits = torch.addmm(self.start, hidden[:, 0].float(), self.map)
        found: list[list[int]] = logits.topk(self.count).indices.tolist()
        return found
