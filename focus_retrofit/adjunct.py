"""Modules that ride along with a model (its device moves, its optimiser) but stay out of its state dict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Adjunct(nn.Module):
    """A submodule whose tensors are saved by other means: the host's checkpoint keeps its names and its size."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Nothing, when the host asks for it on its way through its children; the tensors, when asked directly."""
        destination = args[0] if args else kwargs.get("destination")
        return destination if destination is not None else super().state_dict(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Adjunct:
        """Never emptied: who moves a model to the meta device fills it again from its state dict, which lacks these."""
        if fn(torch.empty(0)).device.type == "meta":
            return self
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """The host's checkpoint has nothing for this module, and misses nothing."""
