"""Problems to check attention with, and the yardstick: error against float64, beside that of dense attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..api import focus_attention
from ..reference import reference_attention


def random_groups(batch: int, tokens: int, top_k: int, num_groups: int, generator: torch.Generator) -> Tensor:
    """[B, T, k] distinct ids, unevenly used."""
    taste = torch.linspace(1.0, 2.0, num_groups)
    return (torch.rand(batch, tokens, num_groups, generator=generator) * taste).topk(top_k, -1).indices


@dataclass
class Case:
    """One problem; tensors are drawn in float64 and cast."""

    tokens: int = 97
    window: int = 8
    num_groups: int = 4
    top_k: int = 1
    sinks: int = 4
    batch: int = 1
    heads: tuple[int, int] = (4, 2)
    size: int = 16
    value_size: int | None = None
    match: str = "probe"
    temperature: Any = None
    temperature_scope: str = "distant"
    softcap: float | None = None
    learned_sinks: bool = False
    padding: str = "none"  # none, left, right, ragged
    documents: int = 1
    groups: str = "random"  # random, one, alternate
    seed: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        g = torch.Generator().manual_seed(self.seed)
        shape = (self.batch, self.tokens)

        def draw(heads: int, size: int) -> Tensor:
            return torch.randn(self.batch, heads, self.tokens, size, generator=g, dtype=torch.float64)

        self.query, self.key = draw(self.heads[0], self.size), draw(self.heads[1], self.size)
        self.value = draw(self.heads[1], self.value_size or self.size)
        if self.groups == "random":
            self.ids = random_groups(*shape, self.top_k, self.num_groups, g)
        else:  # everything in one group, or position by position in turn
            step = 0 if self.groups == "one" else 1
            first = torch.arange(self.tokens) * step
            self.ids = ((first[:, None] + torch.arange(self.top_k)) % self.num_groups).expand(*shape, -1).contiguous()
        if isinstance(self.temperature, str):  # "heads": one per query head
            self.temperature = torch.rand(self.heads[0], generator=g, dtype=torch.float64) + 0.5
        sink_logits = torch.randn(self.heads[0], generator=g, dtype=torch.float64) if self.learned_sinks else None
        self.mask = torch.ones(shape, dtype=torch.bool)
        spare = self.tokens // 3
        for row in range(self.batch):
            if self.padding == "left":
                self.mask[row, : spare * (row + 1) // self.batch] = False
            elif self.padding == "right":
                self.mask[row, self.tokens - spare * (row + 1) // self.batch :] = False
            elif self.padding == "ragged":
                self.mask[row] = torch.rand(self.tokens, generator=g) > 0.3
        pieces = torch.arange(self.tokens) * self.documents // max(self.tokens, 1)
        self.options = {
            "num_groups": self.num_groups,
            "window": self.window,
            "sinks": self.sinks,
            "match": self.match,
            "temperature": self.temperature,
            "temperature_scope": self.temperature_scope,
            "softcap": self.softcap,
            "sink_logits": sink_logits,
            "padding_mask": None if self.padding == "none" else self.mask,
            "sequence_ids": None if self.documents == 1 else pieces.expand(shape),
        }

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
        return self.query.to(dtype), self.key.to(dtype), self.value.to(dtype)

    def reference(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """The oracle on inputs rounded to `dtype`, in float64."""
        q, k, v = (x.to(dtype).double() for x in self.tensors())
        return reference_attention(q, k, v, self.ids, return_lse=True, **self.options)  # type: ignore[return-value]

    def focus(self, backend: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        return focus_attention(  # type: ignore[return-value]
            *self.tensors(dtype), self.ids, backend=backend, return_lse=True, **self.options
        )


class Mismatch(AssertionError):
    """What was computed is not what the contract says."""


def demand(holds: Any, what: str) -> None:
    if not holds:
        raise Mismatch(what)


def error_limit(dtype: torch.dtype, dense: Tensor, want: Tensor) -> float:
    """1e-12 in float64, else twice the error of `dense`, which was computed in this precision; a few roundings where
    there is so little to compute that it has next to none."""
    if dtype == torch.float64:
        return 1e-12
    rounding = 2 * torch.finfo(dtype).eps * float(want.abs().max())
    return max(2 * float((dense.double() - want).abs().max()), rounding)


def check(case: Case, backend: str, dtype: torch.dtype = torch.float64) -> None:
    """out and lse within the budget, and exactly 0 and -inf at padding."""
    out, lse = case.focus(backend, dtype)
    want, want_lse = case.reference(dtype)
    real = case.mask[:, None].expand_as(want_lse)
    demand(out.dtype == dtype, f"the output is {out.dtype}")
    demand(out.shape == want.shape and lse.shape == want_lse.shape, f"shapes {list(out.shape)}, {list(lse.shape)}")
    demand((out[~real] == 0).all() and (lse[~real] == -float("inf")).all(), "padding is not empty")
    if not real.any():
        return
    dense = reference_attention(*case.tensors(dtype), case.ids, return_lse=True, **case.options)
    for name, found, wanted, same in (("output", out, want, dense[0]), ("logsumexp", lse, want_lse, dense[1])):
        limit = error_limit(dtype, same[real], wanted[real])
        if name == "logsumexp" and dtype != torch.float64:
            limit = max(limit, 2e-6)
        error = float((found.double() - wanted)[real].abs().max())
        demand(error <= limit, f"the {name} is wrong by {error:.3g}, allowed is {limit:.3g}")
