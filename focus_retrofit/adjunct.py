"""Modules that ride along with a model (its device moves, its optimiser) but stay out of its state dict."""

from __future__ import annotations

from typing import Any

from torch import nn


class Adjunct(nn.Module):
    """A submodule whose tensors are saved by other means: the host's checkpoint keeps its names and its size."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Nothing, when the host asks for it on its way through its children; the tensors, when asked directly."""
        destination = args[0] if args else kwargs.get("destination")
        return destination if destination is not None else super().state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """The host's checkpoint has nothing for this module, and misses nothing."""
