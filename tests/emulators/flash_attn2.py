"""flash-attn 2.8.3: the varlen function and its private backward, on CPU.

Enforces the real argument lists, half precision, head sizes up to 256 (padded to a multiple of 8 by the public
function only), int32 offsets and pages of 256; dropout and alibi are not emulated.
"""

import importlib.machinery
import math
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from . import checks, fa2_kernel
from .checks import Call, unit_last

VERSION = "2.8.3"
calls: list[Call] = []


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """Writes dq, dk and dv, which must be given because only softmax_d is returned; softmax_d holds no values here."""
    checks.unsupported(dropout_p=dropout_p, alibi_slopes=alibi_slopes)
    checks.tensors(dout=dout, q=q, k=k, v=v, out=out, softmax_lse=softmax_lse)
    checks.tensors(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    checks.numbers(dropout_p=dropout_p, softmax_scale=softmax_scale, softcap=softcap)
    checks.flags(causal=causal, deterministic=deterministic, zero_tensors=zero_tensors)
    window = checks.pair((window_size_left, window_size_right))
    if dq is None or dk is None or dv is None:
        raise ValueError("gradients without a buffer would be lost")
    if rng_state is not None:
        checks.tensors(rng_state=rng_state)
    dout, q, k, v, out = (unit_last(x) for x in (dout, q, k, v, out))
    segments = fa2_kernel.varlen_bwd(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dq=dq,
        dk=dk,
        dv=dv,
        scale=softmax_scale,
        causal=causal,
        window=window,
        softcap=softcap,
        deterministic=deterministic,
        zero_tensors=zero_tensors,
    )
    extra = {"causal": causal, "window": window, "softcap": softcap, "deterministic": deterministic}
    record = fa2_kernel.summary(segments, max_seqlen_q, max_seqlen_k, **extra)
    calls.append(Call("_flash_attn_varlen_backward", record))
    padded_rows = q.shape[0] + 128 * len(segments)
    return q.new_full((q.shape[1], padded_rows), math.nan, dtype=torch.float32)


class _Varlen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        size = q.shape[-1]
        if size % 8:
            q, k, v = (pad(x, (0, 8 - size % 8)) for x in (q, k, v))
        kernel: dict[str, Any] = {name: value for name, value in options.items() if name != "deterministic"}
        out, lse, segments = fa2_kernel.varlen_fwd(unit_last(q), unit_last(k), unit_last(v), **kernel)
        named = ("causal", "window", "softcap")
        extra = {name: options[name] for name in named} | {"paged": options["block_table"] is not None}
        record = fa2_kernel.summary(segments, options["max_q"], options["max_k"], **extra)
        calls.append(Call("flash_attn_varlen_func", record))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = options
        return out[..., :size], lse, q.new_empty((0,))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        options, dout = ctx.options, grads[0]
        size = dout.shape[-1]
        dq, dk, dv = (torch.full_like(x, math.nan) for x in (q, k, v))
        _flash_attn_varlen_backward(
            pad(dout, (0, 8 - size % 8)) if size % 8 else dout,
            q,
            k,
            v,
            out,
            lse,
            dq,
            dk,
            dv,
            options["cu_q"],
            options["cu_k"],
            options["max_q"],
            options["max_k"],
            0.0,
            options["scale"],
            options["causal"],
            options["window"][0],
            options["window"][1],
            options["softcap"],
            None,
            options["deterministic"],
        )
        return dq[..., :size], dk[..., :size], dv[..., :size], None


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Output, or (out, lse, empty S_dmask); a gradient that reaches lse is dropped and paged keys have no backward."""
    checks.unsupported(dropout_p=dropout_p, alibi_slopes=alibi_slopes)
    checks.tensors(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    checks.numbers(dropout_p=dropout_p, softmax_scale=scale, softcap=softcap)
    checks.flags(causal=causal, deterministic=deterministic)
    options = {"cu_q": cu_seqlens_q, "cu_k": cu_seqlens_k, "max_q": max_seqlen_q, "max_k": max_seqlen_k}
    options |= {"scale": scale, "causal": causal, "window": checks.pair(window_size), "softcap": softcap}
    options |= {"deterministic": deterministic, "block_table": block_table}
    apply: Any = _Varlen.apply
    results = apply(q, k, v, options)
    return results if return_attn_probs else results[0]


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `flash_attn` and `flash_attn.flash_attn_interface` importable and forget earlier calls."""
    calls.clear()
    interface = ModuleType("flash_attn.flash_attn_interface")
    package = ModuleType("flash_attn")
    for module in (package, interface):
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=module is package)
        vars(module)["flash_attn_varlen_func"] = flash_attn_varlen_func
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(interface)["_flash_attn_varlen_backward"] = _flash_attn_varlen_backward
    vars(package).update(__version__=VERSION, __path__=[], flash_attn_interface=interface)
