"""What is timed: one attention layer with random inputs and random groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..plan import visible_pairs
from ..problem import Problem


@dataclass(frozen=True)
class Layer:
    """The shape of a benchmark; tensors are drawn once, from a fixed seed."""

    tokens: int
    num_groups: int = 8
    top_k: int = 1
    window: int = 128
    sinks: int = 4
    match: str = "probe"
    q_heads: int = 1
    kv_heads: int = 1
    size: int = 64
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """query, key and value, [1, H, T, D]."""
        torch.manual_seed(0)
        shapes = (self.q_heads, self.kv_heads, self.kv_heads)
        q, k, v = (torch.randn(1, h, self.tokens, self.size, device=self.device).to(self.dtype) for h in shapes)
        return q, k, v

    @cached_property
    def groups(self) -> Tensor:
        """[1, T, k], uniform."""
        torch.manual_seed(1)
        ids = torch.empty(1, self.tokens, self.top_k, dtype=torch.long)
        for part in ids.split(1 << 16, 1):
            part.copy_(torch.rand(1, part.shape[1], self.num_groups).topk(self.top_k, -1).indices)
        return ids.to(self.device)

    @property
    def options(self) -> dict[str, object]:
        return {"num_groups": self.num_groups, "window": self.window, "sinks": self.sinks, "match": self.match}

    @cached_property
    def problem(self) -> Problem:
        scale = self.size**-0.5
        sizes = (self.num_groups, self.top_k, self.window, self.sinks)
        return Problem(*sizes, self.match, scale, None, "distant", None, None)

    @property
    def full_pairs(self) -> int:
        return self.tokens * (self.tokens + 1) // 2

    @cached_property
    def visible(self) -> int:
        """Visible pairs: what an ideal kernel would compute."""
        return visible_pairs(self.groups[0], self.problem)

    @property
    def input_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self.tensors)
