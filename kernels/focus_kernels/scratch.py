"""Working memory used again: torch has no cache for CPU memory, and fresh pages cost more than filling them."""

from __future__ import annotations

import threading
from math import prod

import torch
from torch import Tensor

KEPT = 4 << 20  # bytes of a buffer that outlives its call


class Scratch(threading.local):
    """Buffers by name, one set per thread; what a name held before is overwritten."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def room(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of this shape, with the dtype and device of `like`."""
        count, key = prod(shape), (name, like.dtype, like.device)
        if key not in self.held or self.held[key].numel() < count:
            self.held[key] = like.new_empty(count)
        return self.held[key][:count].view(shape)

    def trim(self, kept: int = KEPT) -> None:
        """Let go of what is too large to keep."""
        self.held = {k: x for k, x in self.held.items() if x.numel() * x.element_size() <= kept}


scratch = Scratch()
