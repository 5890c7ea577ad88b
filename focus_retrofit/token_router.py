"""A router as decoding asks it: one matrix, in few calls, and for tokens that attend densely many at once."""

from __future__ import annotations

import torch
from torch import Tensor

from focus_kernels.scratch import lasting

from .router import Router

MOST = 64  # tokens per row that wait


class TokenRouter:
    """Made of a layer's router when a cache's first token is decoded, and kept with the cache: what the groups of its
    tokens come from does not change under way. Tokens that attend densely need no groups until the text is longer than
    that: they wait, and calling this routes them."""

    @lasting
    def __init__(self, router: Router):
        config = router.config
        self.map = router.projection.float() @ router.centroids.float().T / config.tau  # [d, K]
        self.start = router.potentials.float() * (config.balance == "potentials")
        self.count = router.top_k
        self.hidden: list[Tensor] = []
        self.waiting: list[list[int]] = []

    def groups(self, hidden: Tensor) -> list[list[int]]:
        """hidden [B, 1, d] -> the k best groups of each row's token, best first."""
        logits = torch.addmm(self.start, hidden[:, 0].float(), self.map)
        found: list[list[int]] = logits.topk(self.count).indices.tolist()
        return found

    def groups_later(self, hidden: Tensor) -> list[list[int]]:
        """The same as lists that are empty until this is called."""
        if len(self.hidden) == MOST:
            self()
        lists: list[list[int]] = [[] for _ in range(len(hidden))]
        self.hidden.append(hidden.clone())  # a model may go on in place
        self.waiting += lists
        return lists

    def __call__(self) -> None:
        if self.hidden:
            for waiting, groups in zip(self.waiting, self.groups(torch.cat(self.hidden)), strict=True):
                waiting += groups
            self.hidden, self.waiting = [], []
