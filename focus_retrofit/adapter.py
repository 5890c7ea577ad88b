"""An adapter on disk: focus_config.json + focus_adapter.safetensors + README.md, written all or nothing."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import PreTrainedModel

from focus_kernels import FocusError

from . import __version__
from .card import make_card
from .config import FocusConfig
from .discover import attention_layers
from .files import write_atomically
from .positions import positions_of

CONFIG, TENSORS, CARD = "focus_config.json", "focus_adapter.safetensors", "README.md"
SHIPPED = Path(__file__).parent / "shipped"  # adapters that come with the package, by name
FORMAT = 1  # of the files; a newer one than this version knows is refused


def base_facts(model: PreTrainedModel) -> dict[str, Any]:
    """What an adapter must agree on with the model it is loaded into."""
    text = model.config.get_text_config(decoder=True)
    return {
        "model_type": text.model_type,
        "hidden_size": text.hidden_size,
        "num_layers": 1 + max(layer.index for layer in attention_layers(model)),
        "num_attention_heads": text.num_attention_heads,
    }


def save_adapter(
    model: PreTrainedModel, directory: str | os.PathLike[str], results: Mapping[str, Any] | None = None
) -> Path:
    """Write `model.focus` to a directory, on the main process of a distributed run only."""
    path = Path(directory)
    if any(hasattr(tensor, "full_tensor") for tensor in model.focus.tensors().values()):  # type: ignore[operator, union-attr]
        raise FocusError(
            "the routers themselves are sharded, so no process has them whole: pass ignored_params="
            "set(model.focus.trainable_parameters()) to fully_shard"
        )
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank():
        return path
    if path.exists() and not path.is_dir():
        raise FocusError(f"{path} is a file; give a directory for the adapter")
    path.mkdir(parents=True, exist_ok=True)
    focus: Any = model.focus
    extended = positions_of(model)
    described = {
        "format": FORMAT,
        "focus_version": __version__,
        "base_model": {
            "name": model.config.name_or_path or None,
            **base_facts(model),
            **({"positions": extended} if extended else {}),
        },
        "config": focus.config.to_dict(),
        "layers": focus.layer_indices,
        "parameters": focus.num_parameters(),
        "results": dict(results or {}),
    }
    tensors = {name: tensor.cpu().contiguous() for name, tensor in focus.tensors().items()}
    # The tensors carry the description too: after a crash between the two files the new pair is whole in the first.
    content = save(tensors, metadata={"format": "pt", "focus": json.dumps(described, sort_keys=True)})
    write_atomically(path / TENSORS, content)
    beside = {**described, "tensors": hashlib.sha256(content).hexdigest()}
    write_atomically(path / CONFIG, json.dumps(beside, indent=2, sort_keys=True) + "\n")
    write_atomically(path / CARD, make_card(described))
    return path


def read_adapter(
    model: PreTrainedModel, source: str | os.PathLike[str], **hub: Any
) -> tuple[FocusConfig, dict[str, Tensor]]:
    """Config and tensors of an adapter for this model, or a FocusError with all that is wrong."""
    path = find_adapter(source, **hub)
    try:
        tensors = load_file(path / TENSORS)
    except (SafetensorError, OSError) as error:
        raise FocusError(f"{path / TENSORS} is damaged, or not a safetensors file: {error}") from None
    described = describe_adapter(path)
    differences = _differences(described, base_facts(model))
    if differences:
        raise FocusError(f"the adapter in {path} was made for another model: " + "; ".join(differences))
    _warn_of_positions(described["base_model"].get("positions"), positions_of(model))
    return FocusConfig.from_dict(described["config"]), tensors


def find_adapter(source: str | os.PathLike[str], **hub: Any) -> Path:
    """The directory of an adapter: as given, by the name of one that comes along, or downloaded."""
    path = Path(source)
    if not path.is_dir() and (SHIPPED / path).is_dir():
        path = SHIPPED / path
    if not path.is_dir():
        if path.exists():
            raise FocusError(f"{path} is a file; give the adapter's directory")
        from .hub import download

        path = download(os.fspath(source), **hub)
    for name in (CONFIG, TENSORS):
        if not (path / name).is_file():
            raise FocusError(f"{path} is not a Focus adapter: it has no {name}")
    return path


def describe_adapter(path: Path) -> dict[str, Any]:
    """The JSON's description if it belongs to these tensors (it may have been edited), else the one they carry."""
    try:
        with safe_open(path / TENSORS, "pt") as file:
            inside = json.loads((file.metadata() or {}).get("focus", "null"))
        beside = json.loads((path / CONFIG).read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FocusError(f"{path / CONFIG} is damaged: {error}") from None
    same = (
        isinstance(beside, dict) and beside.get("tensors") == hashlib.sha256((path / TENSORS).read_bytes()).hexdigest()
    )
    described = beside if same else inside
    if not isinstance(described, dict) or not isinstance(described.get("config"), dict):
        raise FocusError(f"{path} is not a Focus adapter: its files do not describe one")
    if int(described.get("format", 0)) > FORMAT:
        raise FocusError(
            f"the adapter in {path} has format {described['format']} (version {described.get('focus_version')}); "
            f"focus_retrofit {__version__} knows up to {FORMAT}: upgrade it"
        )
    return described


def _differences(described: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    saved = described.get("base_model") or {}
    return [
        f"{name} {saved.get(name)!r} in the adapter, {value!r} in the model"
        for name, value in model.items()
        if saved.get(name) != value
    ]


def _warn_of_positions(saved: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> None:
    """Routers look at hidden states, which depend on positions: it works with others, measured or not."""
    if (saved or None) != (now or None):
        words = [f"{x['rope']}, factor {x['factor']}" if x else "as the base model has them" for x in (saved, now)]
        warnings.warn(
            f"the adapter was saved with positions {words[0]}; this model has them {words[1]}: measure it so "
            "(focus-retrofit eval --by-position), or load the model with the same rope",
            stacklevel=4,
        )
