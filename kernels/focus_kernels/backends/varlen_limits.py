"""What FlashAttention's varlen kernels have in common: their limits, offsets and pages."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from ..call import Call
from ..pool import PAGE
from ..varlen import HEAD_SIZE, round_up

device_types = ("cuda",)  # tests widen this to drive the code with emulated kernels


def offsets(counts: list[int], device: torch.device) -> Tensor:
    """cu_seqlens of segments of these lengths."""
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device)


def pages(k: Tensor, v: Tensor, starts: list[int], counts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """[rows, H, D] keys and values as pages, and each segment's table of page numbers; starts are whole pages."""
    k, v = (x.unflatten(0, (-1, PAGE)) for x in (k, v))
    most = max(round_up(count, PAGE) // PAGE for count in counts)
    table = torch.tensor(starts, dtype=torch.int32, device=k.device)[:, None] // PAGE
    table = table + torch.arange(most, dtype=torch.int32, device=k.device)
    return k, v, table.clamp_(max=k.shape[0] - 1).contiguous()


def refuse_half_precision(call: Call) -> str | None:
    """Why a varlen kernel cannot serve this call."""
    query, problem = call.query, call.problem
    if query.device.type not in device_types:
        return f"the tensors are on {query.device}, it runs on CUDA"
    if query.dtype not in (torch.float16, torch.bfloat16):
        return f"it takes float16 and bfloat16, not {query.dtype}"
    size = round_up(max(query.shape[-1], call.value.shape[-1]), 8)
    if size > HEAD_SIZE:
        return f"head size {size} is above its limit of {HEAD_SIZE}"
    if call.engine == "sorted" and problem.softcap is not None:
        return f"the sorted engine's penalty would not survive softcap={problem.softcap}"
    if call.engine == "sorted" and size + problem.num_groups > HEAD_SIZE:
        return f"head size {size} and {problem.num_groups} penalty columns are above its limit of {HEAD_SIZE}"
    return None
