"""Groups that know nothing, for comparison, and perplexity with the density really computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

Groups = Callable[[Tensor], Tensor]  # logits [B, T, K] -> groups [B, T, k]


def random_groups(logits: Tensor) -> Tensor:
    return torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)).topk(1).indices


def strided_groups(logits: Tensor) -> Tensor:
    return (torch.arange(logits.shape[1]) % logits.shape[2]).expand(logits.shape[0], -1)[..., None]


def own_groups(logits: Tensor) -> Tensor:
    """Every token alone: the window and the sinks are all there is."""
    return torch.arange(logits.shape[1]).expand(logits.shape[0], -1)[..., None]


def two(groups: Groups) -> Groups:
    """Probing a second group too, the next one."""

    def both(logits: Tensor) -> Tensor:
        first = groups(logits)
        return torch.cat([first, (first + 1) % logits.shape[2]], -1)

    return both


@contextmanager
def routed(model: Any, groups: Groups | None) -> Iterator[None]:
    """Inside, all layers take these groups instead of their routers'."""
    routers = [model.focus.router(index) for index in model.focus.layer_indices]
    for router in routers if groups else []:
        router.groups = groups
    try:
        yield
    finally:
        for router in routers if groups else []:
            del router.groups


@torch.inference_mode()
def perplexity(model: Any, windows: Iterable[Tensor], what: str) -> dict[str, Any]:
    """exp of the mean loss over windows [T], with a standard error from the windows; with Focus also the density, and
    the largest share that a group has in a layer."""
    focus = getattr(model, "focus", None)
    losses, densities, counts = [], [], {}
    for window in tqdm(windows, desc=what, leave=False):
        losses.append(model(window[None], labels=window[None], use_cache=False).loss.item())
        if focus is None or not focus.enabled:
            continue
        lines = focus.report().layers
        densities.append([sum(getattr(x, part) or 0.0 for x in lines) / len(lines) for part in ("density", "distant")])
        for index in focus.layer_indices:
            seen = torch.bincount(focus.groups_seen(index).flatten(), minlength=focus.config.num_groups)
            counts[index] = counts.get(index, 0) + seen
    found = torch.tensor(losses)
    value = found.mean().exp().item()
    result: dict[str, Any] = {
        "perplexity": value,
        "standard_error": value * (found.std() / len(found) ** 0.5).item(),
        "losses": losses,
    }
    if densities:
        result["density"], result["distant"] = torch.tensor(densities).mean(0).tolist()
        result["largest_group"] = max(float(count.max() / count.sum()) for count in counts.values())
    else:
        result["density"] = result["distant"] = 1.0
    return result
