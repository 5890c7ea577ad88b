"""A folder that works elsewhere: an adapter, and its base model where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from focus_kernels import FocusError

from .adapter import CARD, CONFIG, TENSORS, save_adapter
from .files import fill_atomically, is_leftover


def export(
    model: Any, tokenizer: Any, folder: Path, *, with_base: bool = False, results: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write `model.focus`, and with_base the model and its tokenizer; returns the files and their sizes in bytes."""
    if folder.is_dir() and not all(map(is_leftover, folder.iterdir())) and not (folder / CONFIG).is_file():
        raise FocusError(f"{folder} holds something else: choose an empty folder, or one of an earlier export")
    folder.mkdir(parents=True, exist_ok=True)
    if with_base:
        with model.focus.disabled():  # the configuration then names the base's own attention
            fill_atomically(folder, model.save_pretrained)
        fill_atomically(folder, tokenizer.save_pretrained)
    save_adapter(model, folder, results)
    written = sorted(file for file in folder.iterdir() if file.is_file() and not is_leftover(file))
    files = {file.name: file.stat().st_size for file in written}
    return {"folder": str(folder), "files": files, "adapter": [CONFIG, TENSORS, CARD]}
