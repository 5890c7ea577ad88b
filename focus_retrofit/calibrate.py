"""min_length="auto": the length from which Focus wins over full attention on this machine, measured once and kept."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from focus_kernels import KeyBuckets, focus_attention

from .config import FocusConfig
from .discover import device_of
from .files import write_atomically

LENGTHS = tuple(2**n for n in range(8, 16))


def crossover(model: PreTrainedModel, config: FocusConfig, backend: str) -> int:
    """The shortest power of two from which Focus was faster than SDPA, for this model's heads, dtype and device.

    Kept in the user's cache directory (FOCUS_RETROFIT_CACHE, else XDG_CACHE_HOME), keyed by all that matters.
    """
    text = model.config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    what = {
        "heads": [heads, getattr(text, "num_key_value_heads", None) or heads],
        "size": getattr(text, "head_dim", None) or text.hidden_size // heads,
        "dtype": str(model.dtype),
        "device": _device_name(device_of(model)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "backend": backend,
        "focus": [config.num_groups, config.top_k, config.match, config.window, config.sinks],
    }
    path = cache_directory() / "crossover.json"
    known = _read(path)
    name = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
    if name not in known:
        found = {**what, "crossover": measure(what, model, config, backend)}
        known = {**_read(path), name: found}  # read again: another process may have measured something meanwhile
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(known, indent=2, sort_keys=True) + "\n")
    return int(known[name]["crossover"])


def cache_directory() -> Path:
    """Where measurements of this machine are kept."""
    if "FOCUS_RETROFIT_CACHE" in os.environ:
        return Path(os.environ["FOCUS_RETROFIT_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "focus_retrofit"


def _read(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} {platform.processor()}"


def measure(what: dict[str, Any], model: PreTrainedModel, config: FocusConfig, backend: str) -> int:
    """Time both at growing lengths until Focus has won twice in a row; beyond all lengths if it never does."""
    (heads, kv_heads), size, device = what["heads"], what["size"], device_of(model)
    dtype = model.dtype if model.dtype.is_floating_point else torch.float32
    won: int | None = None
    shape: dict[str, Any] = {name: getattr(config, name) for name in ("num_groups", "window", "sinks", "match")}
    for length in tqdm(LENGTHS, desc="measuring where Focus wins", leave=False):
        q, k, v = (torch.randn(1, h, length, size, device=device, dtype=dtype) for h in (heads, kv_heads, kv_heads))
        groups = torch.rand(1, length, config.num_groups, device=device).topk(config.top_k).indices

        def full(q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Any:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)

        def sparse(q: Tensor = q, k: Tensor = k, v: Tensor = v, groups: Tensor = groups) -> Any:
            KeyBuckets(**shape).prefill(k, v, groups)  # a cache that knows groups is part of what they cost
            return focus_attention(q, k, v, groups, backend=backend, **shape)

        times = [(_seconds(full, device), _seconds(sparse, device)) for _ in range(4)]  # interleaved
        if min(t[1] for t in times) < min(t[0] for t in times):
            if won is not None:
                return won
            won = length
        else:
            won = None
    return LENGTHS[-1] * 2 if won is None else won


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    with torch.inference_mode():
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start
