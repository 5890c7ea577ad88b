"""After a prefill over ranks: one ordinary cache with the tokens of all of them."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from focus_kernels import FocusError

from ..cache import FocusCache, FocusLayer
from .exchange import Link, Route
from .prefill import Prefilled
from .session import Kept, SequenceParallel
from .slices import Slices
from .traffic import Traffic


def gather_cache(prefilled: Prefilled | SequenceParallel, rank: int = 0) -> FocusCache | None:
    """A cache with all tokens, on one rank of the group (None on the others), from which `generate` goes on there.

    Every rank must call it; what they kept for it is let go, layer by layer.
    """
    session = prefilled.session if isinstance(prefilled, Prefilled) else prefilled
    slices, link = session.slices, Link(session.link.group, Traffic())
    if session.latent:
        raise FocusError(
            f"layers {session.latent} cache latents, which a sliced prefill does not see: prefill on one rank to "
            "generate with this model"
        )
    if slices is None or not session.kept:
        raise FocusError("nothing was kept to make a cache of: prefill with keep_cache=True; gather it once")
    here = link.rank == rank
    cache = FocusCache(session.focus.model) if here else None
    nothing = torch.empty(0, dtype=torch.long)
    everything = slices.numbers(range(slices.tokens))
    needed = [everything if one == rank else nothing for one in range(slices.ranks)]
    for index in sorted(session.kept):
        kept = session.kept.pop(index)
        route = Route(needed, slices, kept.key.device)
        key, value, groups = (_whole(x, route, slices, link, here) for x in _by_token(kept))
        if cache is not None and key is not None and value is not None:
            _fill(cache, index, key.transpose(1, 2), value.transpose(1, 2), groups)
    return cache


def _by_token(kept: Kept) -> tuple[Tensor, Tensor, Tensor | None]:
    """[B, n, ...] each."""
    return kept.key.transpose(1, 2), kept.value.transpose(1, 2), kept.groups


def _whole(x: Tensor | None, route: Route, slices: Slices, link: Link, here: bool) -> Tensor | None:
    """[B, n, ...] of each rank -> [B, T, ...] on the one that needs it."""
    if x is None:
        return None
    rows = route.fetch(link, "cache", x.flatten(0, 1)).wait()
    return rows.unflatten(0, (slices.batch, slices.tokens)) if here else None


def _fill(cache: FocusCache, index: int, key: Tensor, value: Tensor, groups: Tensor | None) -> None:
    """key and value [B, H, T, D] into a layer of an empty cache."""
    layer = cache.layers[index]
    if isinstance(layer, FocusLayer):
        if groups is None:
            raise FocusError(f"layer {index} kept no groups")
        layer.lazy_initialization(key, value)
        layer.commit(key, value, groups, None)
    elif isinstance(layer, DynamicLayer):
        layer.update(key, value)
    else:
        raise FocusError(f"layer {index} of the cache is a {type(layer).__name__}, which cannot be filled")
