"""The flash-attn package on CUDA: version 2 (`flash_attn`) and 3 (`flash_attn_interface`), whichever is installed."""

from __future__ import annotations

import inspect
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .. import autograd
from ..call import Call
from ..merge import normalise_lse
from ..pool import PAGE
from ..problem import Problem
from ..segments import Segments
from ..stream import KeyBuckets
from ..varlen import VarlenRunner
from .varlen_limits import offsets, pages, refuse_half_precision

name = "flash_attn"


class FlashAttention2:
    """FlashAttention-2: prefixes of key lists are read as pages."""

    page = PAGE

    def __init__(self) -> None:
        self.module = import_module("flash_attn.flash_attn_interface")

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, part: Segments, scale: float, softcap: float | None
    ) -> tuple[Tensor, Tensor]:
        out, lse, _ = self.module.flash_attn_varlen_func(
            q,
            k,
            v,
            offsets(part.row_counts, q.device),
            offsets(part.key_counts, q.device),
            max(part.row_counts),
            max(part.key_counts),
            softmax_scale=scale,
            causal=part.causal,
            window_size=(part.window, 0 if part.causal else -1),
            softcap=softcap or 0.0,
            return_attn_probs=True,
        )
        return out, normalise_lse(lse)

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
        out, lse, _ = self.module.flash_attn_varlen_func(
            q,
            paged_k,
            paged_v,
            offsets(row_counts, q.device),
            offsets(key_counts, q.device),
            max(row_counts),
            max(key_counts),
            softmax_scale=scale,
            softcap=softcap or 0.0,
            return_attn_probs=True,
            block_table=table,
        )
        return out, normalise_lse(lse)

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
        dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        self.module._flash_attn_varlen_backward(
            grad,
            q,
            k,
            v,
            out,
            lse,
            dq,
            dk,
            dv,
            offsets(part.row_counts, q.device),
            offsets(part.key_counts, q.device),
            max(part.row_counts),
            max(part.key_counts),
            0.0,
            scale,
            part.causal,
            part.window,
            0 if part.causal else -1,
            softcap or 0.0,
            None,
            False,
        )
        return dq, dk, dv


class FlashAttention3:
    """FlashAttention-3: prefixes of key lists are read in place, by offset and used length."""

    page = 1

    def __init__(self) -> None:
        self.module = import_module("flash_attn_interface")

    def _call(self, q: Tensor, k: Tensor, v: Tensor, *lengths: Any, **options: Any) -> tuple[Tensor, Tensor]:
        out, lse = self.module.flash_attn_varlen_func(q, k, v, *lengths, return_attn_probs=True, **options)
        return out, normalise_lse(lse)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, part: Segments, scale: float, softcap: float | None
    ) -> tuple[Tensor, Tensor]:
        lengths = (offsets(part.row_counts, q.device), offsets(part.key_counts, q.device))
        window = (part.window, 0 if part.causal else -1)
        return self._call(
            q,
            k,
            v,
            *lengths,
            max(part.row_counts),
            max(part.key_counts),
            softmax_scale=scale,
            causal=part.causal,
            window_size=window,
            softcap=softcap or 0.0,
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
        starts = torch.tensor([*key_starts, k.shape[0]], dtype=torch.int32, device=q.device)
        used = torch.tensor(key_counts, dtype=torch.int32, device=q.device)
        return self._call(
            q,
            k,
            v,
            offsets(row_counts, q.device),
            starts,
            max(row_counts),
            max(key_counts),
            seqused_k=used,
            softmax_scale=scale,
            softcap=softcap or 0.0,
        )

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
        dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        right = 0 if part.causal else -1
        options: dict[str, Any] = {"softmax_scale": scale, "softcap": softcap or 0.0}
        if "window_size" in inspect.signature(self.module._flash_attn_backward).parameters:  # builds before mid-2025
            options |= {"causal": part.causal, "window_size": (part.window, right)}
        else:
            options |= {"is_causal": part.causal, "window_size_left": part.window, "window_size_right": right}
        self.module._flash_attn_backward(
            grad,
            q,
            k,
            v,
            out,
            lse,
            offsets(part.row_counts, q.device),
            offsets(part.key_counts, q.device),
            None,
            None,
            max(part.row_counts),
            max(part.key_counts),
            dq,
            dk,
            dv,
            **options,
        )
        return dq, dk, dv


@lru_cache(maxsize=2)
def _runner(version: int) -> VarlenRunner:
    return VarlenRunner(FlashAttention3() if version == 3 else FlashAttention2())


def _version() -> int | None:
    """3 where it is built for this GPU (Hopper), else 2."""
    if find_spec("flash_attn_interface") is not None:
        return 3
    return 2 if find_spec("flash_attn") is not None else None


def unavailable() -> str | None:
    """Why this backend cannot run here at all."""
    if _version() is None:
        return "flash-attn is not installed (pip install flash-attn, on a machine with CUDA)"
    return None


def refuse(call: Call) -> str | None:
    """Why this backend cannot serve this call."""
    return refuse_half_precision(call)


def run(call: Call) -> tuple[Tensor, Tensor]:
    return autograd.run(_runner(_version() or 2), call)


def __getattr__(name: str) -> VarlenRunner:
    if name == "runner":
        return _runner(_version() or 2)
    raise AttributeError(name)


def attend_stream(query: Tensor, stream: KeyBuckets, problem: Problem, groups: Tensor | None) -> tuple[Tensor, Tensor]:
    return _runner(_version() or 2).attend_stream(query, stream, problem, groups)
