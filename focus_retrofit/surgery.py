"""`retrofit`: from a pretrained model to one with Focus attention, in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from transformers import PreTrainedModel

from focus_kernels import FocusError

from .adapters import make_adapter
from .attention import register
from .config import FocusConfig
from .controller import Focus
from .positions import check_static

Model = TypeVar("Model", bound=PreTrainedModel)
# choices that no trained tensor depends on
AFTERWARDS = {"top_k", "layer_top_k", "match", "window", "sinks", "min_length"}


def retrofit(model: Model, config: FocusConfig | None = None, *, backend: str = "auto", seed: int = 0) -> Model:
    """Give the full-attention layers of a causal LM Focus attention; returns the model, with `model.focus`.

    Base parameters are frozen and keep their names; `backend` is one of `focus_kernels.available_backends()` or 'auto';
    `seed` draws the untrained routers.
    """
    if hasattr(model, "focus"):
        raise FocusError("this model is already retrofitted: call model.focus.unload() first")
    config = FocusConfig() if config is None else config
    if isinstance(model, PreTrainedModel):  # what else there is, is refused below
        check_static(model)
    made = make_adapter(model, config, backend, seed)
    focus = Focus(model, backend, made)
    base = model.config._attn_implementation or "sdpa"
    focus._names = (base, register(base))
    focus.freeze()
    model.focus = focus
    focus._switch(True)
    return model


def load_adapter(
    model: Model, source: str, *, backend: str = "auto", changes: Mapping[str, Any] | None = None, **hub: Any
) -> Model:
    """Retrofit a model with a saved adapter: a directory, the name of one that comes with the package, or a name on the
    hub (`hub`: options of its download). changes: options to serve it with other than those it was saved with."""
    from .adapter import read_adapter

    config, tensors = read_adapter(model, source, **hub)
    retrofit(model, served_with(config, changes or {}), backend=backend)
    try:
        model.focus.load_tensors(tensors)  # type: ignore[operator, union-attr]
    except FocusError:
        model.focus.unload()  # type: ignore[operator, union-attr]
        raise
    return model


def served_with(config: FocusConfig, changes: Mapping[str, Any]) -> FocusConfig:
    """A trained adapter's config with other choices, of those that leave its tensors as they are."""
    lasting = sorted(set(changes) - AFTERWARDS)
    if lasting:
        raise FocusError(
            f"{', '.join(lasting)} cannot be changed in a trained adapter, only {', '.join(sorted(AFTERWARDS))}: leave "
            "them out, or begin with untrained routers"
        )
    if "top_k" in changes:
        changes = {"layer_top_k": None, **changes}  # what all layers are given is not meant for some
    return replace(config, **changes)
