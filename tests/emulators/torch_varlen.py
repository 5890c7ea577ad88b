"""torch 2.13 `torch.nn.attention.varlen` on CPU, with the FlashAttention-2 kernels that torch ships.

Enforces the public keyword-only arguments, unpadded head sizes, unit last strides without implicit copies, and that
seqused_k and block_table are inference only; an empty row has output 0 and lse +inf.
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen as real
from torch import Tensor
from torch.nn.attention.varlen import AuxRequest

from . import checks, fa2_kernel
from .checks import Call, require

calls: list[Call] = []


def _window(window_size: Any) -> tuple[int, int]:
    return checks.pair([-1, -1] if window_size is None else window_size)


def _scale(query: Tensor, scale: float | None) -> float:
    if scale is None:
        return float(query.shape[-1] ** -0.5)
    checks.numbers(scale=scale)
    return scale


class _Varlen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        out, lse, segments = fa2_kernel.varlen_fwd(q, k, v, **options)
        extra = {"causal": options["causal"], "window": options["window"], "paged": options["block_table"] is not None}
        record = fa2_kernel.summary(segments, options["max_q"], options["max_k"], **extra)
        calls.append(Call("varlen_attn", record))
        rng_state = torch.zeros(2, dtype=torch.uint64, device=q.device)
        ctx.save_for_backward(q, k, v, out, lse, rng_state)
        ctx.options = options
        ctx.mark_non_differentiable(rng_state)
        return out, lse, rng_state

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, rng_state = ctx.saved_tensors
        options = ctx.options
        return *_varlen_attn_backward(
            grads[0],
            q,
            k,
            v,
            out,
            lse,
            options["cu_q"],
            options["cu_k"],
            options["max_q"],
            options["max_k"],
            options["causal"],
            rng_state,
            options["scale"],
            list(options["window"]),
        ), None


def _varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The private operator: (out, lse [heads, total_q], rng_state)."""
    checks.tensors(query=query, key=key, value=value, cu_seq_q=cu_seq_q)
    if cu_seq_k is None:
        raise RuntimeError("cu_seq_q and cu_seq_k must be both set")
    checks.tensors(cu_seq_k=cu_seq_k)
    checks.flags(is_causal=is_causal, enable_gqa=enable_gqa)
    if num_splits is not None:
        checks.integers(num_splits=num_splits)
    require(block_table is None or seqused_k is not None, "block_table requires seqused_k", ValueError)
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    require(seqused_k is None or not recorded, "seqused_k and block_table are inference-only parameters")
    options = {"cu_q": cu_seq_q, "cu_k": cu_seq_k, "max_q": max_q, "max_k": max_k, "causal": is_causal}
    options |= {"scale": _scale(query, scale), "window": _window(window_size)}
    options |= {"seqused_k": seqused_k, "block_table": block_table}
    apply: Any = _Varlen.apply
    out, lse, rng_state = apply(query, key, value, options)
    return out, lse, rng_state


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: AuxRequest | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Output, or (out, lse [heads, total_q]); a gradient that reaches lse is dropped."""
    heads, kv_heads = query.size(1), key.size(1 if block_table is None else 2)
    require(enable_gqa or heads == kv_heads, f"{heads} and {kv_heads} heads need enable_gqa", ValueError)
    require(not enable_gqa or heads % kv_heads == 0, f"{kv_heads} heads do not divide {heads}", ValueError)
    cache = (enable_gqa, seqused_k, block_table, num_splits)
    causal = window_size == (-1, 0)
    sizes = (cu_seq_q, cu_seq_k, max_q, max_k)
    out, lse, _ = _varlen_attn(query, key, value, *sizes, causal, scale, list(window_size), *cache)
    return (out, lse) if return_aux is not None and return_aux.lse else out


def _varlen_attn_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: Tensor,
    scale: float | None = None,
    window_size: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Fresh (dq, dk, dv) from the given out and lse; grad_out and out are made contiguous, the inputs are not."""
    checks.tensors(grad_out=grad_out, query=query, key=key, value=value, out=out, lse=lse, rng_state=rng_state)
    checks.tensors(cu_seq_q=cu_seq_q, cu_seq_k=cu_seq_k)
    checks.flags(is_causal=is_causal)
    window = _window(window_size)
    dq, dk, dv = (torch.full_like(x, math.nan) for x in (query, key, value))
    segments = fa2_kernel.varlen_bwd(
        grad_out.contiguous(),
        query,
        key,
        value,
        out.contiguous(),
        lse,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        dq=dq,
        dk=dk,
        dv=dv,
        scale=_scale(query, scale),
        causal=is_causal,
        window=window,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    record = fa2_kernel.summary(segments, max_q, max_k, causal=is_causal, window=window)
    calls.append(Call("_varlen_attn_backward", record))
    return dq, dk, dv


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the function, its private operators in module and `torch.ops.torch_attn`, and forget earlier calls."""
    calls.clear()
    monkeypatch.setattr(real, "varlen_attn", varlen_attn)
    for operator in (_varlen_attn, _varlen_attn_backward):
        monkeypatch.setattr(real, operator.__name__, operator)
        monkeypatch.setattr(torch.ops.torch_attn, operator.__name__, operator)
