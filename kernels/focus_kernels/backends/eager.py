"""Plain torch on the same tiles: any device and dtype, and softcap; the sparse cost without a fused kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import autograd
from ..call import Call
from ..tiles import TileOps
from .tile import TileRunner

name = "eager"


class EagerTiles:
    """The tile primitive in matmuls, fp32 inside for half precision."""

    def __init__(self, softcap: float | None):
        self.softcap = softcap

    def _logits(self, q: Tensor, k: Tensor, scale: float, causal: bool, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Folded [B, Hkv, rep, M, N] logits, and d(logit)/d(q.k)."""
        raw = _fold(q, k.shape[1]) @ k[:, :, None].transpose(-1, -2)
        slope = raw.new_full((), scale)
        logits = raw * scale
        if self.softcap is not None:
            bent = torch.tanh(logits / self.softcap)
            logits, slope = bent * self.softcap, (1 - bent.square()) * scale
        if causal:
            later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
            logits = logits.masked_fill(later, float("-inf"))
        if mask is not None:
            logits = logits + mask[:, :, None].to(logits.dtype)
        return logits, slope

    def forward(
        self,
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
        q, k, v = _high(q), _high(k), _high(v)
        logits, _ = self._logits(q, k, scale, causal, mask)
        lse = torch.logsumexp(logits, -1)
        out = torch.exp(logits - lse[..., None]) @ v[:, :, None]
        return out.flatten(1, 2), lse.flatten(1, 2)

    def backward(
        self,
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
        heads = k.shape[1]
        grad, q, k, v, out, lse = (_high(x) for x in (grad, q, k, v, out, lse))
        logits, slope = self._logits(q, k, scale, causal, mask)
        weights = torch.exp(logits - _fold(lse, heads)[..., None])
        folded = _fold(grad, heads)
        delta = (grad * out).sum(-1)
        d_logits = weights * (folded @ v[:, :, None].transpose(-1, -2) - _fold(delta, heads)[..., None]) * slope
        dq = d_logits @ k[:, :, None]
        dk = (d_logits.transpose(-1, -2) @ _fold(q, heads)).sum(2)
        dv = (weights.transpose(-1, -2) @ folded).sum(2)
        return dq.flatten(1, 2), dk, dv


def _high(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _fold(x: Tensor, heads: int) -> Tensor:
    """[B, Hq, ...] -> [B, Hkv, rep, ...]: keys stay as they are, never repeated."""
    return x.unflatten(1, (heads, x.shape[1] // heads))


def _ops(softcap: float | None) -> TileOps:
    return EagerTiles(softcap)


runner = TileRunner(_ops)
attend_stream = runner.attend_stream


def unavailable() -> str | None:
    """Why this backend cannot run here at all."""
    return None


def refuse(call: Call) -> str | None:
    """Why this backend cannot serve this call."""
    if call.problem.softcap is not None and call.engine == "sorted":
        return f"the sorted engine's penalty would not survive softcap={call.problem.softcap}"
    return None


def run(call: Call) -> tuple[Tensor, Tensor]:
    return autograd.run(runner, call)
