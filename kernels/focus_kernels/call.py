"""One checked call on its way to a backend, and what comes back for its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .layout import Sequence
from .problem import Problem


@dataclass(frozen=True)
class Call:
    """query [B, Hq, T, D], key and value [B, Hkv, T, D], groups [B, T, k], and where the real tokens are."""

    query: Tensor
    key: Tensor
    value: Tensor
    groups: Tensor
    problem: Problem
    sequences: list[Sequence]
    padding_mask: Tensor | None
    sequence_ids: Tensor | None
    want_lse: bool = True
    engine: str = "auto"
    distant_only: bool = False  # backward of the pairs beyond the window alone; chunked engine

    @property
    def needs_grad(self) -> bool:
        inputs = (self.query, self.key, self.value, self.problem.temperature, self.problem.sink_logits)
        return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)


class Gradients(NamedTuple):
    """Of query, key and value; `slope` [Hq] is the sum of logit * d(logit) over the pairs that have a temperature."""

    query: Tensor
    key: Tensor
    value: Tensor
    slope: Tensor


class Runner(Protocol):
    """A backend that computes sums by itself and leaves autograd to `autograd.py`."""

    def forward(self, call: Call) -> tuple[Tensor, Tensor]:
        """out [B, Hq, T, Dv] in the query's dtype and lse [B, Hq, T]; padding rows 0 and -inf."""
        ...

    def backward(self, call: Call, grad: Tensor, out: Tensor, lse: Tensor) -> Gradients:
        """Exact for the softmax whose merged output and logsumexp are given."""
        ...
