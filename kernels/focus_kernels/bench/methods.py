"""The methods that are timed, each an action on a layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..api import focus_attention, which_backend
from ..attend import attend_chunk
from ..backends import cpu
from ..plan import make_plan
from ..reference import matches
from ..stream import KeyBuckets
from .problems import Layer

SAMPLED_ABOVE = 128 * 1024
SAMPLED_BLOCKS = 24
BLOCK = 1024


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Full causal attention, as a model calls it: aten's CPU FlashAttention, or torch's choice on CUDA."""
    if q.device.type == "cpu":
        return cpu.AtenTiles.forward(q, k, v, scale=q.shape[-1] ** -0.5, causal=True)[0]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def causal_in_blocks(q: Tensor, k: Tensor, v: Tensor, starts: list[int]) -> list[Tensor]:
    """Full attention of blocks of queries against their whole prefix: balanced over threads, unlike one causal call."""
    scale = q.shape[-1] ** -0.5
    outs = []
    for start in starts:
        rows = slice(start, start + BLOCK)
        near, near_lse = cpu.AtenTiles.forward(q[:, :, rows], k[:, :, rows], v[:, :, rows], scale=scale, causal=True)
        if start:
            far, far_lse = cpu.AtenTiles.forward(q[:, :, rows], k[:, :, :start], v[:, :, :start], scale=scale)
            near = torch.lerp(near, far, torch.sigmoid(far_lse - near_lse)[..., None].to(near.dtype))
        outs.append(near)
    return outs


def sampled_starts(tokens: int) -> list[int]:
    """Evenly spaced blocks, centred in equal parts of the sequence, so that their prefixes average to the half."""
    part = tokens / SAMPLED_BLOCKS
    return [int((n + 0.5) * part) // BLOCK * BLOCK for n in range(SAMPLED_BLOCKS)]


def sampled_share(tokens: int) -> float:
    """Pairs in the sampled blocks over all pairs."""
    pairs = sum(BLOCK * start + BLOCK * (BLOCK + 1) // 2 for start in sampled_starts(tokens))
    return pairs / (tokens * (tokens + 1) // 2)


def focus(layer: Layer, backend: str) -> Tensor:
    out = focus_attention(*layer.tensors, layer.groups, backend=backend, **layer.options)  # type: ignore[arg-type]
    return out  # type: ignore[return-value]


def engine_of(layer: Layer, method: str) -> str | None:
    """The engine whose plan a method runs on, if it has one."""
    backend = method.removeprefix("focus ")
    if backend == "auto":
        options: dict[str, Any] = layer.options
        backend = which_backend(*layer.tensors, layer.groups, **options)
    return backend.partition(":")[2] or None


def plan(layer: Layer, engine: str) -> object:
    """Only the index planning of a call."""
    return make_plan(engine, layer.groups[0], layer.problem)


def stream(layer: Layer, chunk: int) -> Tensor:
    """The streaming form, from an empty stream to the last token, of a length that is known, as a prompt's is."""
    q, k, v = layer.tensors
    buckets = KeyBuckets(num_groups=layer.num_groups, window=layer.window, sinks=layer.sinks, match=layer.match)
    buckets.expect(layer.tokens)
    out = torch.empty_like(q)
    for start in range(0, layer.tokens, chunk):
        part = slice(start, start + chunk)
        buckets.append(k[:, :, part], v[:, :, part], layer.groups[:, part])
        out[:, :, part] = attend_chunk(q[:, :, part], buckets)  # type: ignore[assignment]
    return out


def dense_mask(layer: Layer) -> Tensor:
    """SDPA with the whole visibility mask written down."""
    place = torch.arange(layer.tokens, device=layer.device)
    distance = place[:, None] - place
    mask = matches(layer.groups[0], layer.groups[0], layer.match)
    mask |= (distance <= layer.window) | (place < layer.sinks)
    mask &= distance >= 0
    q, k, v = layer.tensors
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def with_backward(layer: Layer, attend: Callable[..., Tensor]) -> None:
    """One forward and backward pass of a function of (query, key, value)."""
    leaves = [x.detach().requires_grad_() for x in layer.tensors]
    out = attend(*leaves)
    out.backward(torch.ones_like(out))


def full_for_grad(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def focus_for_grad(layer: Layer, backend: str) -> Callable[..., Tensor]:
    return partial(focus_attention, groups=layer.groups, backend=backend, **layer.options)  # type: ignore[arg-type,return-value]
