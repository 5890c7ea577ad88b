"""The attention layers of a model, and why some models have none that Focus can take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import get_layer_types_and_kwargs

from focus_kernels import FocusError

from .config import FocusConfig, pick_layers


@dataclass(frozen=True)
class Found:
    """One attention module; `local` layers (sliding window, chunks) have a mask of their own and stay as they are."""

    index: int
    module: nn.Module
    local: bool


def attention_layers(model: Any) -> list[Found]:
    """All causal self-attention layers, in order; raises with the reason if the model cannot be retrofitted."""
    kind = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise FocusError(f"{kind} is not a transformers model: pass one from AutoModelForCausalLM.from_pretrained")
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        raise FocusError(f"{kind} is an encoder-decoder model; Focus retrofits decoder-only (causal) models")
    modules = _attention_modules(model)
    if not modules:
        raise FocusError(
            f"{kind} ({config.model_type}) has no softmax attention layers (a linear-attention or state-space model?): "
            "there are no pairs to leave out"
        )
    if not any(getattr(module, "is_causal", True) for module in modules):
        raise FocusError(f"{kind} ({config.model_type}) attends in both directions (an encoder); Focus is causal")
    if not model._can_set_attn_implementation():
        raise FocusError(
            f"{kind} ({config.model_type}) computes attention in its own code, not through transformers' "
            "AttentionInterface, so nothing can be put in its place; use a model that does"
        )
    types = get_layer_types_and_kwargs(config)[0]
    found = []
    for module in modules:
        index = int(vars(module)["layer_idx"])
        local = getattr(module, "sliding_window", None) is not None
        local = local or (index < len(types) and types[index] != "full_attention")
        found.append(Found(index, module, local))
    return sorted(found, key=lambda x: x.index)


def _attention_modules(model: PreTrainedModel) -> list[nn.Module]:
    """What the modeling file records as attentions or, where it says nothing, what looks like an attention layer."""
    classes: list[type] = []
    for part in model.modules():
        recorded = getattr(type(part), "_can_record_outputs", None) or {} if isinstance(part, PreTrainedModel) else {}
        targets = recorded.get("attentions", []) if isinstance(recorded, dict) else []
        for target in targets if isinstance(targets, list | tuple) else [targets]:
            target = getattr(target, "target_class", target)
            if isinstance(target, type):
                classes.append(target)
    return [
        module
        for module in model.modules()
        if (isinstance(module, tuple(classes)) if classes else "Attention" in type(module).__name__)
        and getattr(module, "layer_idx", None) is not None
        and not getattr(module, "is_cross_attention", False)
    ]


def device_of(module: nn.Module) -> torch.device:
    """Where a layer computes: what accelerate says, or where its weights are."""
    hook = getattr(module, "_hf_hook", None)
    execution = getattr(hook, "execution_device", None)
    if execution is not None:
        return torch.device(execution)
    devices = (p.device for p in module.parameters() if p.device.type != "meta")
    return next(devices, torch.device("cpu"))


def choose_layers(found: list[Found], config: FocusConfig) -> set[int]:
    """The layers to retrofit: those with full attention, or those that were named."""
    full = {one.index for one in found if not one.local}
    if not full:
        raise FocusError(
            "every layer of this model attends within a window of its own, so there is nothing to leave out; where the "
            "checkpoint allows it, load it with sliding_window=None in its config"
        )
    named = pick_layers(config.layers, 1 + max(one.index for one in found))
    chosen = full if named is None else _named(full, named, config)
    others = sorted(set(config.layer_top_k or {}) - chosen)
    if others:
        raise FocusError(f"layer_top_k names layers {others} that are not retrofitted; these are: {sorted(chosen)}")
    return chosen


def _named(full: set[int], named: list[int], config: FocusConfig) -> set[int]:
    wrong = [index for index in named if index not in full]
    if wrong and isinstance(config.layers, list):
        raise FocusError(f"layers {wrong} have no full attention to replace; layers with it: {sorted(full)}")
    if not full & set(named):
        raise FocusError(f"layers {config.layers!r} picks none with full attention; layers with it: {sorted(full)}")
    return full & set(named)
