"""`retrofit`: from a pretrained model to one with Focus attention, in place."""

from __future__ import annotations

from typing import Any, TypeVar

from transformers import PreTrainedModel

from focus_kernels import FocusError

from .adapters import make_adapter
from .attention import register
from .config import FocusConfig
from .controller import Focus

Model = TypeVar("Model", bound=PreTrainedModel)


def retrofit(model: Model, config: FocusConfig | None = None, *, backend: str = "auto", seed: int = 0) -> Model:
    """Give the full-attention layers of a causal LM Focus attention; returns the model, with `model.focus`.

    Base parameters are frozen and keep their names; `backend` is one of `focus_kernels.available_backends()` or 'auto';
    `seed` draws the untrained routers.
    """
    if hasattr(model, "focus"):
        raise FocusError("this model is already retrofitted: call model.focus.unload() first")
    config = FocusConfig() if config is None else config
    made = make_adapter(model, config, backend, seed)
    focus = Focus(model, backend, made)
    base = model.config._attn_implementation or "sdpa"
    focus._names = (base, register(base))
    focus.freeze()
    model.focus = focus
    focus._switch(True)
    return model


def load_adapter(model: Model, source: str, *, backend: str = "auto", **hub: Any) -> Model:
    """Retrofit a model with a saved adapter: a directory, the name of one that comes with the package, or a name on the
    hub (`hub`: options of its download)."""
    from .adapter import read_adapter

    config, tensors = read_adapter(model, source, **hub)
    retrofit(model, config, backend=backend)
    try:
        model.focus.load_tensors(tensors)  # type: ignore[operator, union-attr]
    except FocusError:
        model.focus.unload()  # type: ignore[operator, union-attr]
        raise
    return model
