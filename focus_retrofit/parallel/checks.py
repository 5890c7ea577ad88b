"""What cannot be run on slices is refused, with the reason."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import get_layer_types_and_kwargs

from focus_kernels import FocusError

from ..config import shown_k

SLICED = ("full_attention", "sliding_attention")


def check_model(model: PreTrainedModel) -> None:
    """Everything but attention must look at one token at a time, and know its position from position_ids."""
    focus: Any = getattr(model, "focus", None)
    if focus is None:
        raise FocusError("sequence_parallel needs a retrofitted model: call retrofit(model, config) first")
    if focus.parallel is not None:
        raise FocusError("this model is inside sequence_parallel already")
    config, text = focus.config, model.config.get_text_config(decoder=True)
    if config.leaks:
        raise FocusError("balance='sinkhorn' looks at all tokens at once and cannot be sliced; use 'potentials'")
    if config.match == "share" and any(config.k_of(index) > 1 for index in focus.layer_indices):
        raise FocusError(
            f"match='share' with top_k={shown_k(vars(config))} is not sliced: use match='probe', or top_k=1 "
            "(`load_adapter` takes changes=)"
        )
    if "position_ids" not in signature(model.forward).parameters:
        raise FocusError(f"{type(model).__name__} takes no position_ids, so a slice would not know where it stands")
    other = sorted({*get_layer_types_and_kwargs(text)[0]} - {*SLICED})
    missing = sorted({*range(text.num_hidden_layers)} - {layer.index for layer in focus._layers})
    if other or missing:
        raise FocusError(
            f"not every layer of {type(model).__name__} can be sliced: "
            + (f"there are layers of {', '.join(other)}" if other else f"layers {missing} have no softmax attention")
        )


def check_input(model: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The tokens of a call [B, n], or their embeddings [B, n, d]."""
    focus: Any = model.focus
    if not focus.enabled or focus.mode != "hard" or focus.rival is not None:
        raise FocusError("slices are attended by Focus in mode 'hard' alone: neither disabled, nor soft, nor by rivals")
    if len(args) > 1:
        raise FocusError("inside sequence_parallel pass everything but input_ids by name")
    if kwargs.get("past_key_values") is not None or kwargs.get("use_cache"):
        raise FocusError(
            "a slice has no cache: leave past_key_values and use_cache out; to generate after a prefill use "
            "sequence_parallel(..., keep_cache=True) and gather_cache"
        )
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool((mask != 0).all()):
        raise FocusError("padding cannot be sliced: run rows of one length without an attention_mask")
    tokens = args[0] if args else kwargs.get("input_ids")
    tokens = kwargs.get("inputs_embeds") if tokens is None else tokens
    if tokens is None:
        raise FocusError("inside sequence_parallel the model needs input_ids or inputs_embeds")
    return tokens
