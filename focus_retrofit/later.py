"""Tokens that attend densely need no groups until the text is longer than that: they are routed many at once."""

from __future__ import annotations

import torch
from torch import Tensor

from .router import Router

MOST = 64  # tokens per row that wait


class Later:
    """A layer's hidden states that have not been routed yet. Calling it routes them."""

    def __init__(self, router: Router):
        self.router = router
        self.hidden: list[Tensor] = []
        self.groups: list[list[int]] = []

    def groups_of(self, hidden: Tensor) -> list[list[int]]:
        """hidden [B, 1, d] -> a list per row, empty until this is called."""
        if len(self.hidden) == MOST:
            self()
        waiting: list[list[int]] = [[] for _ in hidden]
        self.hidden.append(hidden.clone())  # a model may go on in place
        self.groups += waiting
        return waiting

    def __call__(self) -> None:
        if self.hidden:
            for waiting, groups in zip(self.groups, self.router.token_groups(torch.cat(self.hidden)), strict=True):
                waiting += groups
            self.hidden, self.groups = [], []
