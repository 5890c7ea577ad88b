"""torch.nn.attention.varlen on CUDA: FlashAttention-2 inside torch, no package to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .. import autograd
from ..call import Call
from ..merge import normalise_lse
from ..pool import PAGE
from ..segments import Segments
from ..varlen import VarlenRunner
from .varlen_limits import offsets, pages, refuse_half_precision

name = "torch_varlen"
_module = "torch.nn.attention.varlen"


class TorchVarlen:
    """Causal is said by a window of (left, 0); prefixes of key lists are read as pages."""

    page = PAGE

    def _call(
        self, q: Tensor, k: Tensor, v: Tensor, *lengths: Any, scale: float, **options: Any
    ) -> tuple[Tensor, Tensor]:
        module = import_module(_module)
        out, lse = module.varlen_attn(
            q,
            k,
            v,
            *lengths,
            return_aux=module.AuxRequest(lse=True),
            scale=scale,
            enable_gqa=q.shape[-2] != k.shape[-2],
            **options,
        )
        return out, normalise_lse(lse)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, part: Segments, scale: float, softcap: float | None
    ) -> tuple[Tensor, Tensor]:
        lengths = (offsets(part.row_counts, q.device), offsets(part.key_counts, q.device))
        window = (part.window, 0 if part.causal else -1)
        return self._call(
            q, k, v, *lengths, max(part.row_counts), max(part.key_counts), scale=scale, window_size=window
        )

    def ranges(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        row_counts: list[int],
        key_starts: list[int],
        key_counts: list[int],
        scale: float,
        softcap: float | None,
    ) -> tuple[Tensor, Tensor]:
        paged_k, paged_v, table = pages(k, v, key_starts, key_counts)
        lengths = (offsets(row_counts, q.device), offsets(key_counts, q.device), max(row_counts), max(key_counts))
        used = torch.tensor(key_counts, dtype=torch.int32, device=q.device)
        return self._call(q, paged_k, paged_v, *lengths, scale=scale, seqused_k=used, block_table=table)

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        part: Segments,
        scale: float,
        softcap: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = torch.ops.torch_attn._varlen_attn_backward(
            grad,
            q,
            k,
            v,
            out,
            lse,
            offsets(part.row_counts, q.device),
            offsets(part.key_counts, q.device),
            max(part.row_counts),
            max(part.key_counts),
            part.causal and part.window < 0,
            torch.zeros(2, dtype=torch.uint64, device=q.device),
            scale,
            [part.window, 0 if part.causal else -1],
        )
        return found


runner = VarlenRunner(TorchVarlen())
attend_stream = runner.attend_stream


def unavailable() -> str | None:
    """Why this backend cannot run here at all."""
    try:
        module = import_module(_module)
    except ImportError:
        return f"torch {torch.__version__} has no {_module}"
    if not hasattr(module, "AuxRequest"):
        return f"{_module} of torch {torch.__version__} returns no logsumexp"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return None


def refuse(call: Call) -> str | None:
    """Why this backend cannot serve this call."""
    if call.problem.softcap is not None:
        return f"torch's varlen attention has no softcap ({call.problem.softcap} was asked for)"
    return refuse_half_precision(call)


def run(call: Call) -> tuple[Tensor, Tensor]:
    return autograd.run(runner, call)
