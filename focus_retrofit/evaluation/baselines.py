"""Groups that know nothing, at the density of those that were learned: what learning adds is measured against them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Groups = Callable[[Tensor], Tensor]  # logits [B, T, K] -> groups [B, T, k]


def random_groups(seed: int = 0) -> Groups:
    """Each token in a group drawn for it, anew in each layer and text."""
    generator = torch.Generator().manual_seed(seed)

    def draw(logits: Tensor) -> Tensor:
        return torch.rand(logits.shape, generator=generator).topk(1).indices

    return draw


def strided_groups(logits: Tensor) -> Tensor:
    """By position modulo K."""
    return (torch.arange(logits.shape[1]) % logits.shape[2]).expand(logits.shape[0], -1)[..., None]


def own_groups(logits: Tensor) -> Tensor:
    """Every token alone: the window and the sinks are all there is."""
    return torch.arange(logits.shape[1]).expand(logits.shape[0], -1)[..., None]


def probing(groups: Groups, k: int) -> Groups:
    """The same groups, with the next ones probed too."""

    def several(logits: Tensor) -> Tensor:
        first = groups(logits)
        return torch.cat([(first + n) % logits.shape[2] for n in range(k)], -1)

    return several


@contextmanager
def routed(model: Any, groups: Groups) -> Iterator[None]:
    """Inside, all layers take these groups instead of their routers', each as many as it did, at temperature 1."""
    routers = [model.focus.router(index) for index in model.focus.layer_indices]
    for router in routers:
        router.groups = probing(groups, router.top_k)
        router.layer_temperature = router.token_temperature = lambda *_: None
    try:
        yield
    finally:
        for router in routers:
            del router.groups, router.layer_temperature, router.token_temperature
