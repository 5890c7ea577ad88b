"""What full attention is given in each layer, for rivals that learn from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .base import Text

if TYPE_CHECKING:
    from ..attention import Seen


@torch.no_grad()
def read_layers(model: Any, windows: Iterable[Tensor], look: Callable[[Text], None]) -> None:
    """Show `look` each layer of each window [T], the model attending fully."""
    focus = model.focus

    def watch(seen: Seen) -> None:
        parts = (seen.query[0], seen.key[0], seen.value[0])
        look(Text(seen.index, len(focus.layer_indices), *parts, scale=seen.options["scale"]))

    before = focus.mode, focus.watch
    focus.mode, focus.watch = "dense", watch
    try:
        for window in windows:
            model(window[None].to(model.device), use_cache=False, logits_to_keep=1)
    finally:
        focus.mode, focus.watch = before
