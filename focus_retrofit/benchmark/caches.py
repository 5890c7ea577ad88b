"""Caches of full attention for decoding: one buffer written to in place, and transformers' own two over it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer


class InPlaceLayer(DynamicLayer):
    """Keys and values in a buffer with room for what is to come: a token costs its own copy, nothing more."""

    keys: Tensor
    values: Tensor

    def __init__(self, room: int):
        super().__init__()
        self.room, self.length = room, 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = (
                x.new_zeros(*x.shape[:2], self.room, x.shape[3]) for x in (key_states, value_states)
            )
        start, self.length = self.length, self.length + key_states.shape[2]
        self.keys[:, :, start : self.length] = key_states
        self.values[:, :, start : self.length] = value_states
        return self.filled()

    def filled(self) -> tuple[Tensor, Tensor]:
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def get_seq_length(self) -> int:
        return self.length

    def crop(self, tokens_to_remove: int) -> None:
        self.length -= abs(tokens_to_remove)


def in_place_cache(model: PreTrainedModel, room: int) -> DynamicCache:
    """An empty one; layers with a window of their own stay transformers', and remember enough to be cropped."""
    cache = DynamicCache(config=model.config)
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[index] = InPlaceLayer(room)
    cache.activate_past_recording()
    return cache


def growing_cache(model: PreTrainedModel, filled: DynamicCache) -> DynamicCache:
    """transformers' default, which copies everything to make room for a token, as if it had been filled itself."""
    cache = DynamicCache(config=model.config)
    for index, layer in enumerate(filled.layers):
        if not isinstance(layer, InPlaceLayer):
            cache.layers[index] = layer
            continue
        own: Any = cache.layers[index]
        own.lazy_initialization(*layer.filled())
        own.keys, own.values = layer.filled()
    return cache


def static_cache(model: PreTrainedModel, filled: DynamicCache) -> StaticCache | None:
    """transformers' preallocated cache over the same buffers; none for models with other kinds of layers."""
    layers = [layer for layer in filled.layers if isinstance(layer, InPlaceLayer)]
    if len(layers) < len(filled.layers):
        return None
    cache = StaticCache(config=model.config, max_cache_len=layers[0].room)
    owns: list[Any] = cache.layers  # attributes whose types differ between releases of transformers
    for own, layer in zip(owns, layers, strict=True):
        if type(own) is not StaticLayer:
            return None
        own.dtype, own.device, own.is_initialized = layer.keys.dtype, layer.keys.device, True
        own.keys, own.values = layer.keys, layer.values
        own.cumulative_length = torch.tensor(layer.length, device=layer.keys.device)
    return cache


def held_bytes(cache: Cache) -> int:
    """Keys and values of a full cache, without room that is not used yet."""
    total = 0
    layers: list[Any] = cache.layers
    for layer in layers:
        both = layer.filled() if isinstance(layer, InPlaceLayer) else (layer.keys, layer.values)
        total += sum(x.numel() * x.element_size() for x in both if x is not None)
    return total
