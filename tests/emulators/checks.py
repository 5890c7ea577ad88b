"""Argument checks shared by the emulators: each stands for a refusal, a crash or a silent corruption on the device."""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


class Call(NamedTuple):
    """A recorded call: the entry point's name and a short description of its arguments."""

    name: str
    args: dict[str, Any]


def require(ok: bool, message: str, error: type[Exception] = RuntimeError) -> None:
    if not ok:
        raise error(message)


def integers(**values: Any) -> None:
    for name, value in values.items():
        require(type(value) is int, f"{name} must be a python int, got {type(value).__name__}", TypeError)


def flags(**values: Any) -> None:
    for name, value in values.items():
        require(type(value) is bool, f"{name} must be a bool, got {type(value).__name__}", TypeError)


def numbers(**values: Any) -> None:
    for name, value in values.items():
        require(type(value) in (int, float), f"{name} must be a python float, got {type(value).__name__}", TypeError)


def tensors(**values: Any) -> None:
    for name, value in values.items():
        require(isinstance(value, Tensor), f"{name} must be a tensor, got {type(value).__name__}", TypeError)


def pair(window: Any) -> tuple[int, int]:
    require(isinstance(window, tuple | list) and len(window) == 2, "window_size must hold two integers", ValueError)
    integers(window_left=window[0], window_right=window[1])
    return window[0], window[1]


def unsupported(**values: Any) -> None:
    """Refuse options that the real function has and no emulator implements."""
    for name, value in values.items():
        if value is not None and (isinstance(value, Tensor) or value != 0):
            raise NotImplementedError(f"{name} is not emulated")


def unit_last(x: Tensor) -> Tensor:
    """Copy a tensor whose last dimension is strided, as the python wrappers do."""
    return x if x.stride(-1) == 1 else x.contiguous()


def half_values(q: Tensor, **others: Tensor) -> None:
    """One half precision dtype and one device for all, unit last stride and 16-byte aligned rows."""
    require(q.dtype in HALF, f"only fp16 and bf16 are supported, got {q.dtype}")
    for name, x in {"q": q, **others}.items():
        require(x.dtype == q.dtype, f"{name} must have the dtype of q, got {x.dtype}")
        require(x.device == q.device, f"{name} must be on the device of q")
        require(x.stride(-1) == 1, f"{name} must have a contiguous last dimension")
        steps = [x.storage_offset(), *(s for s, n in zip(x.stride()[:-1], x.shape[:-1], strict=True) if n > 1)]
        require(x.numel() == 0 or all(s % 8 == 0 for s in steps), f"misaligned address: rows of {name}")


def shape(name: str, x: Tensor, *sizes: int) -> None:
    require(tuple(x.shape) == sizes, f"{name} must have shape {sizes}, got {tuple(x.shape)}")


def int32_vector(name: str, x: Tensor, device: torch.device, size: int | None = None) -> list[int]:
    """Values of a contiguous int32 vector on the same device."""
    require(x.dtype == torch.int32, f"{name} must have dtype int32, got {x.dtype}")
    require(x.device == device, f"{name} must be on the device of q")
    require(x.dim() == 1 and (size is None or x.numel() == size), f"{name} must have shape ({size},)")
    require(x.is_contiguous(), f"{name} must be contiguous")
    values: list[int] = x.tolist()
    return values


def cumulative(name: str, x: Tensor, device: torch.device, size: int | None = None) -> list[int]:
    """Non-decreasing offsets of at least one segment."""
    values = int32_vector(name, x, device, size)
    require(len(values) > 1, "batch size must be positive")
    require(values[0] >= 0, f"{name} must not be negative", ValueError)
    require(all(a <= b for a, b in pairwise(values)), f"{name} must not decrease", ValueError)
    return values


def spans(offsets: list[int]) -> list[int]:
    return [b - a for a, b in pairwise(offsets)]


def in_bounds(name: str, starts: list[int], lengths: list[int], total: int, longest: int) -> None:
    require(min(lengths) >= 0, f"{name} lengths must not be negative", ValueError)
    require(max(lengths) <= longest, f"{name} has a segment longer than its max_seqlen {longest}", ValueError)
    ends = [a + n for a, n in zip(starts, lengths, strict=False)]
    require(max(ends) <= total, f"{name} reads past its {total} rows", ValueError)


def disjoint(name: str, starts: list[int], lengths: list[int]) -> None:
    """Refuse ranges that two segments would both write."""
    used = [(a, a + n) for a, n in zip(starts, lengths, strict=False) if n]
    require(all(a[1] <= b[0] for a, b in pairwise(sorted(used))), f"{name} ranges overlap and are written", ValueError)


def lse_buffer(lse: Tensor, q: Tensor) -> None:
    require(lse.dtype == torch.float32, f"lse must be float32, got {lse.dtype}")
    require(lse.device == q.device, "lse must be on the device of q")
    shape("lse", lse, q.shape[1], q.shape[0])
    require(lse.is_contiguous(), "lse must be contiguous")
