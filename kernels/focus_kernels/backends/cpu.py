"""aten's FlashAttention for CPU: tiles in, (output, logsumexp) out, with a backward that takes both as given."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import autograd
from ..call import Call
from ..tiles import TileOps
from ..tiling import LEAST
from .tile import TileRunner

name = "cpu"
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
# MKL sets itself up in its first call; made from several threads at once, that call loses half of its digits
torch.exp(torch.zeros(1, dtype=torch.float64))
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def block_rows(rows: int) -> int:
    """How many of a call's rows the kernel handles at once."""
    return next(block for block, least in LEAST.items() if rows >= least)


class AtenTiles:
    """The primitive. Causal is aligned top-left; GQA is native; a mask is additive and has the query's dtype."""

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        causal: bool = False,
        mask: Tensor | None = None,
        fold: bool = False,
        block: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """q [B, Hq, M, D], k and v [B, Hkv, N, D] -> out [B, Hq, M, D], lse [B, Hq, M].

        The kernel is faster in larger blocks of rows: few rows of many heads get there folded.
        """
        batch, heads, rows, size = q.shape
        if block:
            return _in_blocks(q, k, v, scale, block)
        if fold and block_rows(heads // k.shape[1] * rows) > block_rows(rows):
            out, lse = _forward(q.reshape(batch, k.shape[1], -1, size), k, v, 0.0, False, scale=scale)
            return out.reshape(batch, heads, rows, size), lse.reshape(batch, heads, rows)
        return _forward(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)

    @staticmethod
    def backward(
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        *,
        scale: float,
        causal: bool = False,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of this tile's pairs, for a softmax whose output and logsumexp are `out` and `lse`."""
        return _backward(grad, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale)


def _in_blocks(q: Tensor, k: Tensor, v: Tensor, scale: float, block: int) -> tuple[Tensor, Tensor]:
    """Heads that share keys side by side for each row, in whole blocks: a row's place does not depend on how many
    follow it."""
    batch, heads, rows, size = q.shape
    shared = (k.shape[1], heads // k.shape[1])
    many = shared[1] * rows
    folded = q.new_zeros(batch, shared[0], max(-(-many // block) * block, LEAST[block]), size)
    folded[:, :, :many].unflatten(2, (rows, -1)).copy_(q.unflatten(1, shared).transpose(2, 3))
    out, lse = (x[:, :, :many].unflatten(2, (rows, -1)) for x in _forward(folded, k, v, 0.0, False, scale=scale))
    return out.transpose(2, 3).reshape(batch, heads, rows, size), lse.transpose(2, 3).reshape(batch, heads, rows)


def _ops(softcap: float | None) -> TileOps:
    return AtenTiles()


runner = TileRunner(_ops)
attend_stream = runner.attend_stream


def unavailable() -> str | None:
    """Why this backend cannot run here at all."""
    return None


def refuse(call: Call) -> str | None:
    """Why this backend cannot serve this call."""
    if call.query.device.type != "cpu":
        return f"the tensors are on {call.query.device}"
    if call.problem.softcap is not None:
        return f"softcap={call.problem.softcap} is not known to aten's kernel"
    return None


def run(call: Call) -> tuple[Tensor, Tensor]:
    return autograd.run(runner, call)
