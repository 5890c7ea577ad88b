"""`retrofit`: from a pretrained model to one with Focus attention, in place."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from focus_kernels import FocusError

from .attention import register
from .calibrate import crossover
from .config import FocusConfig, pick_layers
from .controller import Focus
from .discover import Found, attention_layers, device_of
from .layer import Layer
from .router import Router

Model = TypeVar("Model", bound=PreTrainedModel)


def retrofit(model: Model, config: FocusConfig | None = None, *, backend: str = "auto", seed: int = 0) -> Model:
    """Give the full-attention layers of a causal LM Focus attention; returns the model, with `model.focus`.

    Base parameters are frozen and keep their names; `backend` is one of `focus_kernels.available_backends()` or 'auto';
    `seed` draws the untrained routers.
    """
    if hasattr(model, "focus"):
        raise FocusError("this model is already retrofitted: call model.focus.unload() first")
    config = FocusConfig() if config is None else config
    found = attention_layers(model)
    chosen = choose_layers(found, config)
    dense_below = config.min_length if isinstance(config.min_length, int) else crossover(model, config, backend)
    focus = Focus(model, config, backend, dense_below)
    base = model.config._attn_implementation or "sdpa"
    focus._names = (base, register(base))
    generator = torch.Generator().manual_seed(seed)
    hidden_size = model.config.get_text_config(decoder=True).hidden_size
    for one in found:
        layer = Layer(one.index, focus, local=one.local)
        if one.index in chosen:
            layer.router = Router(hidden_size, config, generator).to(device_of(one.module))
        focus.attach(layer, one.module)
    focus.freeze()
    focus.train(model.training)
    model.focus = focus
    focus._switch(True)
    return model


def choose_layers(found: list[Found], config: FocusConfig) -> set[int]:
    """The layers to retrofit: those with full attention, or those that were named."""
    full = {one.index for one in found if not one.local}
    if not full:
        raise FocusError(
            "every layer of this model attends within a window of its own, so there is nothing to leave out; where the "
            "checkpoint allows it, load it with sliding_window=None in its config"
        )
    named = pick_layers(config.layers, 1 + max(one.index for one in found))
    if named is None:
        return full
    wrong = [index for index in named if index not in full]
    if wrong and isinstance(config.layers, list):
        raise FocusError(f"layers {wrong} have no full attention to replace; layers with it: {sorted(full)}")
    if not full & set(named):
        raise FocusError(f"layers {config.layers!r} picks none with full attention; layers with it: {sorted(full)}")
    return full & set(named)


def load_adapter(model: Model, source: str, *, backend: str = "auto", **hub: Any) -> Model:
    """Retrofit a model with a saved adapter: a directory, or a name on the hub (`hub`: options of its download)."""
    from .adapter import read_adapter

    config, tensors = read_adapter(model, source, **hub)
    retrofit(model, config, backend=backend)
    try:
        model.focus.load_tensors(tensors)  # type: ignore[operator, union-attr]
    except FocusError:
        model.focus.unload()  # type: ignore[operator, union-attr]
        raise
    return model
