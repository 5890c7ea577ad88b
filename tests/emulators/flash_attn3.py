"""flash-attn 3 (`flash_attn_interface`): the varlen function and its private backward, on CPU.

Enforces the real argument lists, half precision, unpadded head sizes, the allowed value head sizes and seqused ranges;
fp8, qv, attention_chunk and unpacked layouts are not emulated.
"""

import importlib.machinery
import math
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from . import checks, fa3_kernel
from .checks import Call, require, unit_last

calls: list[Call] = []


def _record(name: str, segments: list[Any], options: dict[str, Any]) -> None:
    lengths = [(part.q_len, part.k_len) for part in segments]
    starts = [(part.q_start, part.k_start) for part in segments]
    calls.append(Call(name, {"segments": lengths, "starts": starts, **options}))


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    sequed_q: Tensor | None = None,
    sequed_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> Tensor:
    """Writes dq, dk and dv, which must be given because only softmax_d is returned; softmax_d holds no values here."""
    if cu_seqlens_q is None or cu_seqlens_k is None:
        raise NotImplementedError("only the packed layout is emulated")
    require(max_seqlen_q is not None and max_seqlen_k is not None, "max_seqlen must be provided with cu_seqlens")
    if max_seqlen_q is None or max_seqlen_k is None or dq is None or dk is None or dv is None:
        raise ValueError("gradients without a buffer would be lost")
    checks.tensors(dout=dout, q=q, k=k, v=v, out=out, softmax_lse=softmax_lse)
    checks.integers(max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, sm_margin=sm_margin)
    checks.flags(is_causal=is_causal, deterministic=deterministic)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    checks.numbers(softmax_scale=scale, softcap=softcap)
    left, right = checks.pair((window_size_left, window_size_right))
    options: dict[str, Any] = {"softcap": softcap, "deterministic": deterministic}
    dout, q, k, v, out = (unit_last(x) for x in (dout, q, k, v, out))
    segments = fa3_kernel.bwd(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        cu_seqlens_q,
        cu_seqlens_k,
        sequed_q,
        sequed_k,
        max_seqlen_q,
        max_seqlen_k,
        dq=dq,
        dk=dk,
        dv=dv,
        scale=scale,
        window=(left, 0 if is_causal else right),
        **options,
    )
    options |= {"causal": is_causal, "window": (left, right)}
    options |= {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    _record("_flash_attn_backward", segments, options)
    return q.new_full((q.shape[1], q.shape[0] + 128 * len(segments)), math.nan, dtype=torch.float32)


def _flash_attn_backward_v283(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    sequed_q: Tensor | None,
    sequed_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> tuple[Tensor | None, ...]:
    """The argument list of builds up to the 2.8.3 tag: one window pair, and the gradients are returned as well."""
    lengths = (cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k, max_seqlen_q, max_seqlen_k)
    left, right = checks.pair(window_size)
    tail: Any = (softmax_scale, causal, left, right, softcap, deterministic, sm_margin)
    softmax_d = _flash_attn_backward(dout, q, k, v, out, softmax_lse, *lengths, dq, dk, dv, *tail)
    return dq, dk, dv, softmax_d


class _Varlen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, lengths: tuple[Any, ...], options: Any) -> Any:
        scale, causal, (left, right), softcap, _ = options
        require(v.stride(-1) == 1 or v.stride(-3) != 1, "v must have a contiguous last dimension")
        tensors: list[Any] = [None if x is None else unit_last(x) for x in (q, k, v, *lengths[:4])]
        window = (left, 0 if causal else right)
        results = fa3_kernel.fwd(*tensors, *lengths[4:], scale=scale, window=window, softcap=softcap)
        out, lse, segments = results
        record = {"causal": causal, "window": (left, right), "softcap": softcap}
        _record("flash_attn_varlen_func", segments, record | {"max_seqlen_q": lengths[4], "max_seqlen_k": lengths[5]})
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.lengths, ctx.options = lengths, options
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        scale, causal, window, softcap, deterministic = ctx.options
        buffers = [torch.full_like(x, math.nan) for x in (q, k, v)]
        tail = (scale, causal, *window, softcap, deterministic)
        _flash_attn_backward(grads[0], q, k, v, out, lse, *ctx.lengths, *buffers, *tail)
        return *buffers, None, None


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Output, or (out, lse [heads, total_q]); a gradient that reaches lse is dropped."""
    checks.unsupported(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, chunk=attention_chunk)
    if cu_seqlens_q is None or cu_seqlens_k is None:
        raise NotImplementedError("only the packed layout is emulated")
    checks.tensors(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    checks.integers(max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, num_splits=num_splits, sm_margin=sm_margin)
    checks.flags(causal=causal, deterministic=deterministic, pack_gqa=False if pack_gqa is None else pack_gqa)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    checks.numbers(softmax_scale=scale, softcap=softcap)
    lengths = (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k)
    options = (scale, causal, checks.pair(window_size), softcap, deterministic)
    apply: Any = _Varlen.apply
    results = apply(q, k, v, lengths, options)
    return results if return_attn_probs else results[0]


def install(monkeypatch: pytest.MonkeyPatch, *, v283_backward: bool = False) -> None:
    """Make `flash_attn_interface` importable, with the current or the older backward, and forget earlier calls."""
    calls.clear()
    module = ModuleType("flash_attn_interface")
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    backward = _flash_attn_backward_v283 if v283_backward else _flash_attn_backward
    vars(module).update(flash_attn_varlen_func=flash_attn_varlen_func, _flash_attn_backward=backward)
    monkeypatch.setitem(sys.modules, module.__name__, module)
