"""Dense float64 attention over packed segments, shared by every emulator.

Rows and gradients that no segment covers are left as the caller's buffers hold them, or NaN in fresh outputs.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Window = tuple[int, int]


class Segment(NamedTuple):
    """One query range and the key range it attends to, as offsets into the packed tensors."""

    q_start: int
    q_len: int
    k_start: int
    k_len: int

    @property
    def q_rows(self) -> slice:
        return slice(self.q_start, self.q_start + self.q_len)

    @property
    def k_rows(self) -> slice:
        return slice(self.k_start, self.k_start + self.k_len)


def visible(q_len: int, k_len: int, window: Window) -> Tensor:
    """Mask [q_len, k_len] of the bottom-right aligned, inclusive window; a negative side is unlimited."""
    position = torch.arange(q_len)[:, None] + (k_len - q_len)
    key = torch.arange(k_len)[None, :]
    mask = torch.ones(q_len, k_len, dtype=torch.bool)
    if window[0] >= 0:
        mask &= key >= position - window[0]
    if window[1] >= 0:
        mask &= key <= position + window[1]
    return mask


def _expand(x: Tensor, heads: int) -> Tensor:
    return x.double().repeat_interleave(heads // x.shape[1], dim=1)


def _scores(q: Tensor, k: Tensor, scale: float, window: Window, softcap: float) -> tuple[Tensor, Tensor]:
    """Masked scores [heads, q_len, k_len] and their derivative by the scaled dot product."""
    raw = torch.einsum("qhd,khd->hqk", q, k) * scale
    slope = torch.ones_like(raw)
    if softcap > 0:
        bent = torch.tanh(raw / softcap)
        raw, slope = bent * softcap, 1 - bent.square()
    hidden = ~visible(q.shape[0], k.shape[0], window).to(raw.device)
    return raw.masked_fill(hidden, -math.inf), slope


def segment_forward(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: Window = (-1, -1), softcap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Output [q_len, heads, v_dim] and natural-log lse [heads, q_len] of one segment; an empty row has lse -inf."""
    heads = q.shape[1]
    scores, _ = _scores(q.double(), _expand(k, heads), scale, window, softcap)
    if k.shape[0] == 0:
        return scores.new_zeros(q.shape[0], heads, v.shape[-1]), scores.new_full((heads, q.shape[0]), -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    shift = torch.where(lse == -math.inf, torch.zeros_like(lse), lse)
    probs = torch.exp(scores - shift[..., None])
    return torch.einsum("hqk,khd->qhd", probs, _expand(v, heads)), lse


def segment_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    scale: float,
    window: Window = (-1, -1),
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of one segment from the given out and lse; as in the kernels an lse of -inf counts as zero."""
    heads, kv_heads = q.shape[1], k.shape[1]
    q, dout, wide_k, wide_v = q.double(), dout.double(), _expand(k, heads), _expand(v, heads)
    scores, slope = _scores(q, wide_k, scale, window, softcap)
    lse = lse.double()
    shift = torch.where(lse == -math.inf, torch.zeros_like(lse), lse)
    probs = torch.exp(scores - shift[..., None])
    delta = (dout * out.double()).sum(-1).T
    dprobs = torch.einsum("qhd,khd->hqk", dout, wide_v)
    dscores = probs * (dprobs - delta[..., None]) * slope * scale
    dq = torch.einsum("hqk,khd->qhd", dscores, wide_k)
    dk = torch.einsum("hqk,qhd->khd", dscores, q)
    dv = torch.einsum("hqk,qhd->khd", probs, dout)
    groups = (k.shape[0], kv_heads, heads // kv_heads, -1)
    return dq, _group_sum(dk, groups), _group_sum(dv, groups)


def _group_sum(x: Tensor, groups: tuple[int, int, int, int]) -> Tensor:
    return x.reshape(*groups[:3], x.shape[-1]).sum(2)


@torch.no_grad()
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Sequence[Segment],
    *,
    scale: float,
    window: Window,
    softcap: float,
    empty_lse: float,
) -> tuple[Tensor, Tensor]:
    """Packed output in the input dtype and float32 lse [heads, total_q]; uncovered rows are NaN."""
    out = q.new_full((q.shape[0], q.shape[1], v.shape[-1]), math.nan)
    lse = q.new_full((q.shape[1], q.shape[0]), math.nan, dtype=torch.float32)
    for part in segments:
        rows, keys = part.q_rows, part.k_rows
        part_out, part_lse = segment_forward(q[rows], k[keys], v[keys], scale=scale, window=window, softcap=softcap)
        out[rows] = part_out.to(out.dtype)
        lse[:, rows] = part_lse.masked_fill(part_lse == -math.inf, empty_lse).float()
    return out, lse


@torch.no_grad()
def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    segments: Sequence[Segment],
    *,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    scale: float,
    window: Window,
    softcap: float,
) -> None:
    """Write the gradients of every covered row into dq, dk and dv; other rows stay untouched."""
    for part in segments:
        rows, keys = part.q_rows, part.k_rows
        grads = segment_backward(
            dout[rows],
            q[rows],
            k[keys],
            v[keys],
            out[rows],
            lse[:, rows],
            scale=scale,
            window=window,
            softcap=softcap,
        )
        dq[rows], dk[keys], dv[keys] = (grad.to(q.dtype) for grad in grads)


def unpage(cache: Tensor, table: Tensor, lengths: Sequence[int]) -> Tensor:
    """Pack the first lengths[b] tokens of every row of a page table, in order."""
    rows = [cache[table[b].long()].flatten(0, 1)[:length] for b, length in enumerate(lengths)]
    return torch.cat(rows) if rows else cache.new_empty(0, *cache.shape[2:])
