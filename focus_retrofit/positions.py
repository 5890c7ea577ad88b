"""Positions beyond training: RoPE scaling, as transformers' own config says it, for a model that is loaded already.

Only scalings that never change are taken. 'dynamic' NTK and LongRoPE's switch choose frequencies by how long the text
is by now: a token's output would depend on how many follow it, and cached keys would be turned by different angles."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from focus_kernels import FocusError

ROPES = ("linear", "ntk", "yarn", "longrope")
RECORD = "focus_positions"  # what was done, in the model's config: a base scaled once looks like any other base
FULL = "full_attention"  # the layers that are scaled where each kind of layer has positions of its own


class Extension:
    """What `extend_positions` did. `undo()` takes it back bit for bit; in a `with` statement, at its end."""

    def __init__(self, configs: list[Any], modules: list[nn.Module]):
        names = ("rope_parameters", "max_position_embeddings", "head_dim", RECORD)
        self._configs = [(x, {name: getattr(x, name) for name in names if hasattr(x, name)}) for x in configs]
        self._modules = [(x, {**x._buffers}, dict(_plain(x))) for x in modules]

    def undo(self) -> None:
        for config, values in self._configs:
            if RECORD not in values and hasattr(config, RECORD):
                delattr(config, RECORD)
            for name, value in values.items():
                setattr(config, name, value)
        for module, buffers, values in self._modules:
            _put(module, buffers, values)
        self._configs, self._modules = [], []

    def __enter__(self) -> Extension:
        return self

    def __exit__(self, *reason: object) -> None:
        self.undo()


def extend_positions(model: PreTrainedModel, rope: str, factor: float | None = None) -> Extension:
    """Let a model read texts `factor` times as long as it was made for, in place; before or after `retrofit`.

    rope: 'linear' interpolates positions; 'ntk' enlarges the base once, theta * factor ** (d / (d - 2)); 'yarn' mixes
    the two by frequency and sharpens attention; 'longrope' settles a LongRoPE model on its own long factors, and takes
    no factor. Caches begin anew.
    """
    check_request(rope, factor)
    text = model.config.get_text_config(decoder=True)
    modules = rotary_modules(model)
    before = positions_of(model)
    if before is not None:
        raise FocusError(
            f"the positions of this model are extended already ({before['rope']}, factor {before['factor']}): undo "
            "that first, or load the model anew"
        )
    configs = list({id(x): x for x in (text, *(module.config for module in modules))}.values())
    extension = Extension(configs, modules)
    try:
        wanted = _parameters(text, modules[0], rope, factor)
        made_for = text.max_position_embeddings
        record = {"rope": rope, "factor": factor, "original_max_position_embeddings": made_for}
        for config in configs:
            config.rope_parameters = copy.deepcopy(wanted)
            config.max_position_embeddings = round(made_for * (factor or 1))
            setattr(config, RECORD, dict(record))
            if getattr(config, "head_dim", 1) is None:  # transformers' YaRN reads it without a look at what it is
                config.head_dim = config.hidden_size // config.num_attention_heads
        try:
            text.validate_rope()
        except ValueError as error:
            raise FocusError(f"{text.model_type} does not take rope {rope!r}: {error}; try 'ntk'") from None
        for module in modules:
            with torch.device("cpu"):
                fresh = type(module)(module.config)
            _put(module, fresh._buffers, dict(_plain(fresh)))
    except BaseException:
        extension.undo()
        raise
    return extension


def check_request(rope: str | None, factor: float | None) -> None:
    """Mistakes show before anything is loaded; `rope` None is no scaling."""
    if rope is None:
        if factor is not None:
            raise FocusError(f"a rope factor of {factor} needs a rope to apply it: {', '.join(ROPES)}")
    elif "dynamic" in rope:
        raise FocusError(
            f"rope {rope!r} changes all frequencies as the text grows, so that a token's output depends on how many "
            "follow it, and cached keys no longer fit: use 'ntk', the same base scaled once for the whole length"
        )
    elif rope not in ROPES:
        raise FocusError(f"rope is {rope!r}; choose one of {', '.join(map(repr, ROPES))}")
    elif rope == "longrope":
        if factor is not None:
            raise FocusError(f"rope 'longrope' has factors of its own, in the model: leave out the factor {factor}")
    elif factor is None or not math.isfinite(factor) or factor <= 1:
        raise FocusError(f"the rope factor is {factor}; say how many times longer texts become, more than 1")


def check_static(model: PreTrainedModel) -> None:
    """Refuses a model whose frequencies depend on the length of the text: see the top of this file."""
    for _, parameters in _by_layer(model.config.get_text_config(decoder=True)):
        kind = parameters.get("rope_type") or "default"
        if "dynamic" in kind:
            raise FocusError(
                f"this model's rope is {kind!r}: its frequencies change as the text grows, so that a token's output "
                "depends on how many follow it. Scale them once for the length you need: extend_positions(model, "
                f"'ntk', {parameters.get('factor') or 2.0}), or load_pretrained(..., rope='ntk', rope_factor=...)"
            )
        if kind == "longrope" and _switches(parameters):
            raise FocusError(
                "this model's rope is 'longrope': all its frequencies switch at "
                f"{parameters.get('original_max_position_embeddings')} tokens, so that a token's output depends on how "
                "many follow it. Settle on the long ones: extend_positions(model, 'longrope'), or "
                "load_pretrained(..., rope='longrope')"
            )


def positions_of(model: PreTrainedModel) -> dict[str, Any] | None:
    """How positions were extended: rope, factor and original_max_position_embeddings; None where they were not."""
    return getattr(model.config.get_text_config(decoder=True), RECORD, None)


def rotary_modules(model: PreTrainedModel) -> list[Any]:
    """The modules that hold the frequencies of the text model; a vision part has its own config."""
    text = model.config.get_text_config(decoder=True)
    found = [
        module
        for module in model.modules()
        if type(getattr(module, "config", None)) is type(text)
        and any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))
    ]
    if not found or not getattr(text, "rope_parameters", None):
        raise FocusError(
            f"{type(model).__name__} ({text.model_type}) has no rotary positions that its config describes (a table of "
            "learned positions, or code of its own): there is nothing to scale, and no way past its "
            f"{getattr(text, 'max_position_embeddings', None)} positions"
        )
    return found


def _by_layer(text: Any) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """RoPE parameters by kind of layer, under None where all layers share them."""
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = {key: value for key, value in parameters.items() if isinstance(value, dict)}
    if nested:
        yield from nested.items()
    elif parameters:
        yield None, parameters


def _parameters(text: Any, rotary: nn.Module, rope: str, factor: float | None) -> dict[str, Any]:
    """The config's rope_parameters, scaled: of full-attention layers alone where kinds of layers have their own."""
    whole = copy.deepcopy(text.rope_parameters)
    parts = dict(_by_layer(text))
    layer = None if None in parts else FULL
    if layer not in parts:
        raise FocusError(f"the full-attention layers of this {text.model_type} have no rotary positions to scale")
    frequencies = rotary.get_buffer("inv_freq" if layer is None else f"{layer}_inv_freq")
    scaled = _scaled(dict(parts[layer]), rope, factor, 2 * frequencies.numel(), text.max_position_embeddings)
    return scaled if layer is None else {**whole, layer: scaled}


def _scaled(old: dict[str, Any], rope: str, factor: float | None, dim: int, made_for: int) -> dict[str, Any]:
    kind = old.get("rope_type") or "default"
    if rope == "longrope":
        if kind != "longrope":
            raise FocusError(f"this model's rope is {kind!r}, without long factors: use 'yarn', 'ntk' or 'linear'")
        more = {"short_mscale": old["long_mscale"]} if "long_mscale" in old else {}
        return {**old, "short_factor": list(old["long_factor"]), **more}
    if rope == "ntk":
        if kind not in ("default", "linear", "yarn", "llama3", "dynamic"):
            raise FocusError(f"this model's rope is {kind!r}: 'ntk' does not know how its base makes frequencies")
        if dim <= 2:
            raise FocusError("this model turns one pair of components per head, which no base can slow down")
        theta = old["rope_theta"] * float(factor or 1) ** (dim / (dim - 2))  # the slowest turns `factor` times slower
        kept = {key: value for key, value in old.items() if kind != "dynamic" or key not in ("factor", "type")}
        return {**kept, "rope_type": "default" if kind == "dynamic" else kind, "rope_theta": theta}
    if kind != "default":
        raise FocusError(
            f"this model's rope is scaled already ({kind!r}), and was trained so: {rope!r} takes an unscaled one; "
            "'ntk' changes the base alone and goes with it"
        )
    more = {"original_max_position_embeddings": made_for} if rope == "yarn" else {}
    return {**old, "rope_type": rope, "factor": float(factor or 1), **more}


def _switches(parameters: dict[str, Any]) -> bool:
    pairs = (("short_factor", "long_factor"), ("short_mscale", "long_mscale"))
    return any(parameters.get(short) != parameters.get(long) for short, long in pairs)


def _plain(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What a rotary module keeps beside its buffers: the kind of rope, the scale of attention, lengths."""
    for name, value in vars(module).items():
        if not name.startswith("_") and name not in ("training", "config", "forward"):
            yield name, value


def _put(module: nn.Module, buffers: dict[str, Any], values: dict[str, Any]) -> None:
    """Exchange what a rotary module holds, each buffer where its layer is; hooks and identity stay."""
    device = next(iter(module._buffers.values())).device  # type: ignore[union-attr]
    for name in [name for name, _ in _plain(module)]:
        delattr(module, name)
    module._buffers.clear()
    for name, buffer in buffers.items():
        module.register_buffer(name, buffer if buffer is None else buffer.to(device), persistent=False)
    for name, value in values.items():
        setattr(module, name, value)
