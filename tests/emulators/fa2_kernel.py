"""The FlashAttention-2 varlen kernels behind both flash-attn 2.8.3 and torch: no padding, no implicit copies.

An empty row has lse +inf; page sizes are multiples of 256; grouped dk and dv are overwritten as a whole.
"""

import math
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from . import checks, dense
from .checks import require
from .dense import Segment, Window


def effective_window(causal: bool, left: int, right: int, max_q: int, max_k: int, *, is_forward: bool) -> Window:
    """The window the kernels apply: sides of at least max_k open up, a lone side closes the other at max_k."""
    if causal and not (is_forward and max_q == 1):
        right = 0
    left = -1 if left >= max_k else left
    right = -1 if right >= max_k else right
    if left >= 0 > right:
        right = max_k
    return left, right


def summary(segments: list[Segment], max_q: int, max_k: int, **extra: Any) -> dict[str, Any]:
    lengths = [(part.q_len, part.k_len) for part in segments]
    return {"segments": lengths, "max_seqlen_q": max_q, "max_seqlen_k": max_k, **extra}


def _heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    heads, size = q.shape[1:]
    require(size <= 256, f"head size {size} exceeds 256")
    require(size % 8 == 0, f"head size {size} is not a multiple of 8")
    require(k.shape[-2] > 0 and heads % k.shape[-2] == 0, "key heads must divide query heads")
    checks.shape("k", k, *k.shape[:-2], k.shape[-2], size)
    checks.shape("v", v, *k.shape)


def _offsets(name: str, cu: Tensor, q: Tensor, total: int | None, size: int | None = None) -> list[int]:
    """Offsets of the segments; total is None where the offsets do not index packed rows."""
    offsets = checks.cumulative(name, cu, q.device, size)
    require(offsets[0] == 0, f"{name} must start at 0", ValueError)
    require(total is None or offsets[-1] <= total, f"{name} reads past its {total} rows", ValueError)
    return offsets


def _pages(k: Tensor, table: Tensor, batch: int, lengths: list[int]) -> Tensor:
    """The checked page table, with the entries that no token uses pointing at a valid page."""
    require(table.dtype == torch.int32, "block_table must have dtype int32")
    require(table.device == k.device, "block_table must be on the device of q")
    require(table.dim() == 2 and table.stride(-1) == 1, "block_table rows must be contiguous")
    require(table.shape[0] == batch, "block_table must have one row per segment")
    require(k.shape[1] > 0 and k.shape[1] % 256 == 0, f"page size {k.shape[1]} is not a multiple of 256")
    require(max(lengths) <= table.shape[1] * k.shape[1], "block_table has too few pages", ValueError)
    used = torch.cat([table[b, : -(-n // k.shape[1])] for b, n in enumerate(lengths)])
    require(bool(((used >= 0) & (used < k.shape[0])).all()), "block_table names a page out of range", ValueError)
    return table.clamp(0, max(k.shape[0] - 1, 0))


def varlen_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    causal: bool,
    window: Window,
    softcap: float = 0.0,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
) -> tuple[Tensor, Tensor, list[Segment]]:
    """Output, lse [heads, total_q] and the segments that were run."""
    checks.integers(max_seqlen_q=max_q, max_seqlen_k=max_k)
    require(q.dim() == 3 and k.dim() == (3 if block_table is None else 4), "q must be packed, k packed or paged")
    _heads(q, k, v)
    checks.half_values(q, k=k, v=v)
    offsets_q = _offsets("cu_seqlens_q", cu_q, q, q.shape[0])
    batch, spans_q = len(offsets_q) - 1, checks.spans(offsets_q)
    if max_q == 1 and q.shape[1] > k.shape[-2] and window[0] < 0 and window[1] < 0:
        require(q.shape[0] == batch and min(spans_q) == 1, "grouped single-token queries need one token per segment")
    starts = _offsets("cu_seqlens_k", cu_k, q, k.shape[0] if block_table is None else None, batch + 1)
    spans_k = checks.spans(starts)
    if seqused_k is not None:
        spans_k = checks.int32_vector("seqused_k", seqused_k, q.device, batch)
    if block_table is not None:
        table = _pages(k, block_table, batch, spans_k)
        k, v = dense.unpage(k, table, spans_k), dense.unpage(v, table, spans_k)
        starts = [0, *accumulate(spans_k)]
    checks.in_bounds("q", offsets_q, spans_q, q.shape[0], max_q)
    checks.in_bounds("k", starts, spans_k, k.shape[0], max_k)
    segments = [Segment(*part) for part in zip(offsets_q, spans_q, starts, spans_k, strict=False)]
    if max_k == 0:
        out = q.new_zeros(q.shape)
        return out, q.new_full((q.shape[1], q.shape[0]), math.inf, dtype=torch.float32), segments
    require(max_q > 0, "invalid configuration argument: max_seqlen_q is 0")
    applied = effective_window(causal, *window, max_q, max_k, is_forward=True)
    out, lse = dense.forward(q, k, v, segments, scale=scale, window=applied, softcap=softcap, empty_lse=math.inf)
    return out, lse, segments


def varlen_bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    scale: float,
    causal: bool,
    window: Window,
    softcap: float = 0.0,
    deterministic: bool = False,
    zero_tensors: bool = False,
) -> list[Segment]:
    """Fill dq, dk and dv from the given out and lse; returns the segments that were run."""
    checks.integers(max_seqlen_q=max_q, max_seqlen_k=max_k)
    require(q.dim() == 3 and k.dim() == 3, "backward takes packed q and k only")
    _heads(q, k, v)
    checks.half_values(q, k=k, v=v, out=out, dout=dout, dq=dq, dk=dk, dv=dv)
    checks.lse_buffer(lse, q)
    for name, x, like in (("out", out, q), ("dout", dout, q), ("dq", dq, q), ("dk", dk, k), ("dv", dv, v)):
        checks.shape(name, x, *like.shape)
    offsets_q = _offsets("cu_seqlens_q", cu_q, q, q.shape[0])
    offsets_k = _offsets("cu_seqlens_k", cu_k, q, k.shape[0], len(offsets_q))
    spans_q, spans_k = checks.spans(offsets_q), checks.spans(offsets_k)
    checks.in_bounds("q", offsets_q, spans_q, q.shape[0], max_q)
    checks.in_bounds("k", offsets_k, spans_k, k.shape[0], max_k)
    segments = [Segment(*part) for part in zip(offsets_q, spans_q, offsets_k, spans_k, strict=False)]
    require(max_q == 0 or max_k > 0 or deterministic, "invalid configuration argument: max_seqlen_k is 0")
    with torch.no_grad():
        if zero_tensors:
            dq.zero_()
        if max_q == 0 or zero_tensors:
            dk.zero_()
            dv.zero_()
        elif q.shape[1] != k.shape[1]:
            dk.fill_(math.nan)
            dv.fill_(math.nan)
    if max_q > 0:
        applied = effective_window(causal, *window, max_q, max_k, is_forward=False)
        grads = {"dq": dq, "dk": dk, "dv": dv}
        dense.backward(dout, q, k, v, out, lse, segments, **grads, scale=scale, window=applied, softcap=softcap)
    return segments
