"""Several adapters for one base model: kept by name beside it, one of them at work."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from focus_kernels import FocusError

from .calibrate import crossover
from .config import FocusConfig
from .discover import attention_layers, choose_layers, device_of
from .router import Router, load_routers

if TYPE_CHECKING:
    from .controller import Focus


@dataclass
class Shelved:
    """An adapter that is not at work: its options and routers."""

    config: FocusConfig
    routers: nn.ModuleDict
    dense_below: int


def make_adapter(model: Any, config: FocusConfig, backend: str, seed: int) -> Shelved:
    """An untrained adapter for a model's layers, each router where its layer is."""
    found = attention_layers(model)
    chosen = choose_layers(found, config)
    generator = torch.Generator().manual_seed(seed)
    text = model.config.get_text_config(decoder=True)
    sizes = text.hidden_size, text.num_attention_heads
    routers = nn.ModuleDict()
    for one in found:
        if one.index in chosen:
            routers[str(one.index)] = Router(*sizes, config, one.index, generator).to(device_of(one.module))
    dense_below = config.min_length if isinstance(config.min_length, int) else crossover(model, config, backend)
    return Shelved(config, routers.train(model.training), dense_below)


def add_adapter(focus: Focus, name: str, source: Any, seed: int, **hub: Any) -> None:
    """Put an adapter on the shelf: read from a directory or the hub, or, for a FocusConfig, untrained."""
    if name in focus.adapters:
        raise FocusError(f"there is an adapter {name!r} already: choose another name, or delete it first")
    if isinstance(source, FocusConfig):
        focus.shelf[name] = make_adapter(focus.model, source, focus.backend, seed)
        return
    from .adapter import read_adapter

    config, tensors = read_adapter(focus.model, os.fspath(source), **hub)
    made = make_adapter(focus.model, config, focus.backend, seed)
    load_routers(made.routers, tensors)
    focus.shelf[name] = made


def set_adapter(focus: Focus, name: str) -> None:
    """Change places: the named adapter goes to work, the present one on the shelf."""
    if name == focus.name:
        return
    if name not in focus.shelf:
        raise FocusError(f"no adapter {name!r}; there are: {', '.join(map(repr, focus.adapters))}")
    now, then = Shelved(focus.config, focus.routers, focus.dense_below), focus.shelf.pop(name)
    focus.shelf[focus.name] = now
    for one in attention_layers(focus.model):
        if str(one.index) in then.routers:
            then.routers[str(one.index)].to(device_of(one.module))  # the model may have moved meanwhile
    then.routers.train(now.routers.training)
    focus.name = name
    focus.put(then)
