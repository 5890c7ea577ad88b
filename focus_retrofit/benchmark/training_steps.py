"""What trains one attention layer, as functions to time: hard routing with a gradient for its groups, the soft gate,
full attention beside them; and how much arithmetic each is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from focus_kernels import gated_attention
from focus_kernels.bench.methods import full_for_grad
from focus_kernels.bench.problems import Layer

from ..config import FocusConfig
from ..masks import Layout
from ..router import Routing
from ..soft import soft_attention


@dataclass(frozen=True)
class Routed(Layer):
    """A layer whose groups are the best of random scores, so that soft assignments go with them."""

    @cached_property
    def scores(self) -> Tensor:
        """[1, T, K]; as decided as a trained router's."""
        drawn = torch.randn(1, self.tokens, self.num_groups, generator=torch.Generator().manual_seed(2))
        return 4 * drawn.to(self.device)

    @cached_property
    def groups(self) -> Tensor:
        return self.scores.topk(self.top_k, -1).indices


@dataclass(frozen=True)
class Step:
    """What trains a layer: q, k, v [1, H, T, D] and scores [1, T, K] -> [1, Hq, T, D]."""

    name: str  # as setups state it
    attend: Callable[[Routed, Tensor, Tensor, Tensor, Tensor], Tensor]
    explore: int = 0  # groups per query with a gradient, of hard routing

    def run(self, layer: Routed) -> None:
        """One forward and backward."""
        out = self.attend(layer, *(x.detach().requires_grad_() for x in (*layer.tensors, layer.scores)))
        out.backward(torch.ones_like(out))

    def work(self, layer: Routed) -> float:
        """Arithmetic over that of full attention."""
        if not self.explore:
            return SOFT_WORK
        density = layer.visible / layer.full_pairs
        return hard_work(layer.tokens, density, self.explore, layer.num_groups, layer.window, layer.size)


def explores(focus: FocusConfig) -> list[int]:
    """Groups per query that get a gradient: as configured, or else the fewest and the most."""
    return [focus.explore] if focus.explore else sorted({focus.top_k, focus.num_groups})


def explored_text(focus: FocusConfig, explore: int) -> str:
    return f"lm-hard, explore = {explore}" + (" (all)" if explore == focus.num_groups else "")


def steps_of(focus: FocusConfig, soft: bool = True) -> list[Step]:
    """Those that a configuration may be trained by."""
    hard = [Step(explored_text(focus, n), partial(_hard, n), n) for n in explores(focus)]
    return [*hard, Step("lm, soft gate", partial(_soft, focus))] if soft else hard


def _hard(explore: int, layer: Routed, q: Tensor, k: Tensor, v: Tensor, scores: Tensor) -> Tensor:
    """As `hard.attend_whole` with a router that learns."""
    soft = scores.softmax(-1)
    explored = soft.detach().topk(explore, -1).indices
    options: dict[str, Any] = layer.options
    return gated_attention(q, k, v, layer.groups, soft, explored=explored, **options)


def _soft(focus: FocusConfig, layer: Routed, q: Tensor, k: Tensor, v: Tensor, scores: Tensor) -> Tensor:
    routed = Routing(Layout(1, layer.tokens, None, q.device), scores, layer.groups, None)
    controller: Any = SimpleNamespace(config=focus, dense_below=0)
    plain: dict[str, Any] = {"temperature": None, "softcap": None, "sink_logits": None, "dropout": 0.0}
    return soft_attention(q, k, v, routed, controller, scale=layer.size**-0.5, **plain)


def _full(layer: Routed, q: Tensor, k: Tensor, v: Tensor, scores: Tensor) -> Tensor:
    return full_for_grad(q, k, v)


FULL_STEP = Step("full attention", _full)


SOFT_WORK = 2 * 12 / 14  # all pairs, later ones too; six products, none computed anew


def hard_work(tokens: int, density: float, explore: int, groups: int, window: int, size: int) -> float:
    """A pair costs two products forward and five backward. One that is explored costs five more, three of them with the
    gate's columns; explored are distant pairs, of which even groups have explore / K."""
    distant = max(tokens - window - 1, 0) * max(tokens - window, 0) / (tokens * (tokens + 1))
    gate = (6 * (size + 2 * groups) + 4 * size) / (14 * size)
    return density + gate * distant * explore / groups
