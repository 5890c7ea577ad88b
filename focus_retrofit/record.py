"""Results of a run that grow part by part in a JSON file, so that a run that was stopped goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from focus_kernels.errors import FocusError

from .files import write_atomically


class Record(dict[str, Any]):
    """A dictionary with a file. `asked` is what the run was asked for: a file of another one is refused, not mixed."""

    def __init__(self, path: Path | None, asked: dict[str, Any]):
        super().__init__(asked=asked)
        self.path = path
        if path is None or not path.is_file():
            return
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            was = before["asked"]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
            raise FocusError(f"{path} is not a file of results: choose another") from None
        changed = [f"{x} {was.get(x)!r} -> {asked.get(x)!r}" for x in {**was, **asked} if was.get(x) != asked.get(x)]
        if changed:
            raise FocusError(
                f"{path} holds results of another run ({'; '.join(changed)}): choose another, or delete it"
            )
        self.update(before)

    def save(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps(self, indent=1) + "\n")


def model_facts(model: Any) -> dict[str, Any]:
    """What a reader wants to know of a base model."""
    text = model.config.get_text_config(decoder=True)
    name = model.config.name_or_path or text.model_type
    return {
        "name": Path(name).name if Path(name).is_absolute() else name,
        "type": text.model_type,
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": text.num_hidden_layers,
        "heads": text.num_attention_heads,
        "key_heads": getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        "hidden": text.hidden_size,
        "dtype": str(model.dtype).removeprefix("torch."),
    }
