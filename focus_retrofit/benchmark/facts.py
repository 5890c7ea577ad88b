"""What a row says of its model."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from focus_kernels import FocusError

from ..discover import device_of
from .kernel import options_text


def model_facts(model: PreTrainedModel) -> dict[str, Any]:
    """setup, dtype, device and threads of a row."""
    focus: Any = model.focus
    name = Path(str(model.config.name_or_path or "")).name or model.config.model_type
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    taken = len(focus.layer_indices)
    part = f"{layers} layers" if taken == layers else f"{taken} of {layers} layers"
    below = f", dense below {focus.dense_below}" if focus.dense_below else ""
    dtype = str(model.dtype).removeprefix("torch.")
    return {
        "setup": f"{name}, {part}, {options_text(focus.config)}{below}, {dtype}",
        "dtype": dtype,
        "device": device_of(model).type,
        "threads": torch.get_num_threads(),
    }


def position_limit(model: PreTrainedModel) -> int | None:
    """Tokens the model was made for."""
    config = model.config.get_text_config(decoder=True)
    found = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    return None if found is None else int(found)


def check_positions(model: PreTrainedModel, longest: int) -> None:
    """Rotary positions go on beyond the limit, a table of them does not."""
    limit = position_limit(model)
    if limit is None or longest <= limit:
        return
    words = model.get_input_embeddings()
    tables = [x for x in model.modules() if isinstance(x, nn.Embedding) and x is not words]
    if any(table.num_embeddings <= limit + 2 for table in tables):
        raise FocusError(
            f"this model has a table of {limit} positions; {longest} tokens do not fit: use shorter lengths"
        )


def mean_density(model: PreTrainedModel, name: str = "density") -> float:
    """Of the layers that Focus took, in the last call or (`decode_density`) the decoding since; what was attended
    densely has none of its own."""
    focus: Any = model.focus
    taken = set(focus.layer_indices)
    lines = [line for line in focus.report().layers if line.layer in taken]
    found = [getattr(line, name) for line in lines]
    return fmean(1.0 if density is None else density for density in found)


def head_shape(model: PreTrainedModel) -> tuple[tuple[int, int], int]:
    """(query heads, key heads) and their size, of a layer."""
    text = model.config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return (heads, getattr(text, "num_key_value_heads", None) or heads), size
