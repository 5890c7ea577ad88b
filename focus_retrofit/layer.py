"""What a retrofitted model remembers of each attention layer between its call and its attention function."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import Cache, EncoderDecoderCache

from focus_kernels import FocusError

from .cache import FocusLayer, adopt
from .masks import Layout
from .router import Router
from .stats import Stats

if TYPE_CHECKING:
    from .controller import Focus

ATTRIBUTE = "_focus_layer"  # where an attention module keeps its Layer
CACHE_NAMES = ("past_key_values", "layer_past", "past_key_value")


@dataclass
class Layer:
    """One attention module. Without a router it stays as it was: dense, or (`local`) with a mask of its own."""

    index: int
    focus: Focus
    router: Router | None = None
    local: bool = False
    latent: bool = False  # caches latents, see latent.py
    hidden: Tensor | None = None  # this call's input, [B, T, d]
    cache: FocusLayer | None = None  # this call's cache, if it has one
    hook: RemovableHandle | None = None
    stats: Stats = field(default_factory=Stats)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of the attention module: keep its input, and let its cache hold groups."""
        focus = self.focus
        if self.router is None or not focus.enabled:
            return
        hidden = self.hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        cache: Any = None
        for name in CACHE_NAMES:
            cache = kwargs.get(name)
            if cache is not None:
                break
        else:
            cache = next((x for x in args if isinstance(x, Cache)), None)
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        self.cache = None
        if cache is not None and focus.mode == "hard":
            held = self.cache = adopt(cache, self.index, focus.config, focus.name, focus.dense_below)
            unmasked = len(args) < 2 and kwargs.get("attention_mask") is None
            early = held.length < focus.dense_below and unmasked and not module.training and not self.latent
            early = early and focus.only_serves() and not torch.compiler.is_compiling()
            if early and held.has_lane(hidden):
                self.hidden = hidden.clone()  # a model may go on in place
                held.announce((self.hidden, self.router))
            else:
                held.announce()

    def handed_out(self, base: str, device: torch.device) -> bool:
        """This call's tokens have got all keys from their cache: nothing is left to do but to attend."""
        if self.cache is None or not self.cache.handed_out:
            return False
        hidden, self.hidden, self.cache = self.hidden, None, None
        if hidden is not None and hidden.shape[1] > 1 and self.router is not None:
            layout = Layout(hidden.shape[0], hidden.shape[1], None, device)
            self.stats.note_later(partial(self.router.route, hidden, layout), self.focus.dense_below, f"dense ({base})")
        return True

    def take_call(self) -> tuple[Tensor, FocusLayer | None]:
        """What `before` kept of this call: the hidden states, and the cache."""
        hidden, cache = self.hidden, self.cache
        self.hidden = self.cache = None
        if hidden is None:
            raise FocusError(
                f"layer {self.index}: the attention function was called without its module, so there is no hidden "
                "state to route by; call the model or its modules"
            )
        return hidden, cache
