"""The FlashAttention-3 varlen kernels: segment b starts at cu_seqlens[b] and runs for seqused[b] when that is given.

Key ranges may overlap in forward only. An empty row has lse -inf, or +inf when the key tensor has no rows at all.
"""

import math

import torch
from torch import Tensor

from . import checks, dense
from .checks import require
from .dense import Segment, Window


def _ranges(name: str, cu: Tensor, used: Tensor | None, x: Tensor, longest: int) -> tuple[list[int], list[int]]:
    starts = checks.cumulative(f"cu_seqlens_{name}", cu, x.device)
    lengths = checks.spans(starts)
    require(starts[-1] <= x.shape[0], f"cu_seqlens_{name} reads past its {x.shape[0]} rows", ValueError)
    if used is not None:
        lengths = checks.int32_vector(f"seqused_{name}", used, x.device, len(lengths))
    checks.in_bounds(name, starts, lengths, x.shape[0], longest)
    return starts[:-1], lengths


def _segments(
    q: Tensor,
    k: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    used_q: Tensor | None,
    used_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    writes_k: bool,
) -> list[Segment]:
    ranges_q = _ranges("q", cu_q, used_q, q, max_q)
    ranges_k = _ranges("k", cu_k, used_k, k, max_k)
    require(len(ranges_q[0]) == len(ranges_k[0]), "cu_seqlens_q and cu_seqlens_k must have one size")
    checks.disjoint("q", *ranges_q)
    if writes_k:
        checks.disjoint("k", *ranges_k)
    return [Segment(*part) for part in zip(*ranges_q, *ranges_k, strict=True)]


def _heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    require(q.dim() == 3 and k.dim() == 3 and v.dim() == 3, "q, k and v must be packed")
    require(k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0, "key heads must divide query heads")
    require(q.shape[-1] <= 256, f"head size {q.shape[-1]} exceeds 256")
    require(q.shape[-1] % 8 == 0 and v.shape[-1] % 8 == 0, "head sizes must be multiples of 8")
    checks.shape("k", k, k.shape[0], k.shape[1], q.shape[-1])
    checks.shape("v", v, k.shape[0], k.shape[1], v.shape[-1])


def fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    used_q: Tensor | None,
    used_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window: Window,
    softcap: float,
) -> tuple[Tensor, Tensor, list[Segment]]:
    """Output [total_q, heads, v_dim], lse [heads, total_q] and the segments that were run."""
    _heads(q, k, v)
    checks.half_values(q, k=k, v=v)
    size, v_size = q.shape[-1], v.shape[-1]
    wide = size <= 64 and v_size <= 512
    latent = 128 < size <= 192 and 96 < v_size <= 128
    require(size == v_size or wide or latent, f"value head size {v_size} is not supported with {size}")
    segments = _segments(q, k, cu_q, cu_k, used_q, used_k, max_q, max_k, writes_k=False)
    if k.shape[0] == 0:
        out = q.new_zeros(q.shape[0], q.shape[1], v_size)
        return out, q.new_full((q.shape[1], q.shape[0]), math.inf, dtype=torch.float32), segments
    options = {"scale": scale, "softcap": softcap, "empty_lse": -math.inf}
    return *dense.forward(q, k, v, segments, window=window, **options), segments


def bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    used_q: Tensor | None,
    used_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    scale: float,
    window: Window,
    softcap: float,
    deterministic: bool,
) -> list[Segment]:
    """Fill the covered rows of dq, dk and dv from the given out and lse; returns the segments that were run."""
    _heads(q, k, v)
    checks.half_values(q, k=k, v=v, out=out, dout=dout, dq=dq, dk=dk, dv=dv)
    widest = max(q.shape[-1], v.shape[-1])
    require(widest <= 256, f"head size {widest} exceeds 256 in backward")
    require(not deterministic or widest <= 192, f"deterministic backward is not supported for head size {widest}")
    checks.lse_buffer(lse, q)
    checks.shape("out", out, *q.shape[:2], v.shape[-1])
    for name, x, like in (("dout", dout, out), ("dq", dq, q), ("dk", dk, k), ("dv", dv, v)):
        checks.shape(name, x, *like.shape)
    segments = _segments(q, k, cu_q, cu_k, used_q, used_k, max_q, max_k, writes_k=True)
    with torch.no_grad():
        if q.shape[0] == 0:
            dk.zero_()
            dv.zero_()
        elif k.shape[0] == 0:
            dq.zero_()
    grads = {"dq": dq, "dk": dk, "dv": dv}
    dense.backward(dout, q, k, v, out, lse, segments, **grads, scale=scale, window=window, softcap=softcap)
    return segments
