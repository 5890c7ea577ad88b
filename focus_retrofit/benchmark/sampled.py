"""A prompt that takes full attention too long: that is timed in some blocks of one layer, and scaled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from focus_kernels.bench.methods import BLOCK, SAMPLED_BLOCKS, causal_in_blocks, sampled_share, sampled_starts

from ..streaming import read_chunks
from .caches import in_place_cache
from .facts import head_shape
from .full import full_attention, no_attention
from .rows import FOCUS, FULL
from .timing import NOTHING, Note, seconds_of

SAMPLED = "sampled blocks"
HOW = f"attention of one layer in {SAMPLED_BLOCKS} evenly spaced blocks of {BLOCK} queries, times its layers"


def read_in_turn(model: PreTrainedModel, ids: Tensor, chunk: int, note: Note) -> tuple[dict[str, list[float]], Any]:
    """Seconds to read ids [1, T] with Focus, without attention, and with full attention, and the cache that Focus
    filled. They take turns chunk by chunk, so that a noisy neighbour hits them alike however long this takes."""
    focus: Any = model.focus
    tokens, layers, ends = ids.shape[1], len(focus.layer_indices), range(chunk, ids.shape[1] + chunk, chunk)
    cache, nothing = focus.new_cache(), partial(full_attention, model, no_attention(model))
    sparsely = read_chunks(model, ids, cache, chunk)
    plainly = read_chunks(model, ids, in_place_cache(model, tokens), chunk)
    attend, starts = _one_layer(model, tokens), sampled_starts(tokens)
    attend(starts[:1])
    spent = dict.fromkeys((FOCUS, NOTHING, SAMPLED), 0.0)

    def time(name: str, action: Callable[[], object]) -> None:
        spent[name] += seconds_of(action)

    for end in ends:
        note(f"up to {min(end, tokens):,}, with Focus, without attention, and {SAMPLED} of full attention in turn")
        time(FOCUS, partial(next, sparsely))
        with nothing():
            time(NOTHING, partial(next, plainly))
        due = [start for start in starts if end - chunk <= start < end]
        if due:
            time(SAMPLED, partial(attend, due))
    full = spent[NOTHING] + layers * spent[SAMPLED] / sampled_share(tokens)
    return {FOCUS: [spent[FOCUS]], NOTHING: [spent[NOTHING]], FULL + SAMPLED: [full]}, cache


def _one_layer(model: PreTrainedModel, tokens: int) -> Callable[[list[int]], object]:
    """Full attention of one layer, in blocks that begin at these places, against their whole prefix."""
    (heads, kv_heads), size = head_shape(model)
    q, k, v = (torch.randn(1, n, tokens, size, dtype=model.dtype) for n in (heads, kv_heads, kv_heads))
    return partial(causal_in_blocks, q, k, v)
