"""Working memory used again: torch has no cache for CPU memory, and fresh pages cost more than filling them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from math import prod
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

KEPT = 4 << 20  # bytes of a buffer that outlives its call


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def lasting(make: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """For functions whose tensors outlive the call: made in inference mode, they would be of no use outside it."""

    @wraps(make)
    def made(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if not (torch.is_inference_mode_enabled() or torch.is_grad_enabled()):
            return make(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return make(*args, **kwargs)

    return made


class Scratch(threading.local):
    """Buffers by name, one set per thread; what a name held before is overwritten."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self.views: dict[tuple[str, tuple[int, ...], torch.dtype, torch.device], Tensor] = {}  # as they were last asked

    def room(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of this shape, with the dtype and device of `like`."""
        asked = (name, shape, like.dtype, like.device)
        view = self.views.get(asked)
        if view is None:
            count, key = prod(shape), (name, like.dtype, like.device)
            if key not in self.held or self.held[key].numel() < count:
                self.held[key] = self._make(like, count)
                self.views.clear()
            if len(self.views) > 64:
                self.views.clear()
            view = self.views[asked] = lasting(self.held[key][:count].view)(shape)
        return view

    @staticmethod
    @lasting
    def _make(like: Tensor, count: int) -> Tensor:
        return torch.empty(count, dtype=like.dtype, device=like.device)

    def trim(self, kept: int = KEPT) -> None:
        """Let go of what is too large to keep."""
        if any(x.numel() * x.element_size() > kept for x in self.held.values()):
            self.held = {k: x for k, x in self.held.items() if x.numel() * x.element_size() <= kept}
            self.views.clear()


scratch = Scratch()
