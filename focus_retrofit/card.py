"""The README.md of a saved adapter: what it is, for which model, how to load it, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from .models import PACKAGED

TEXT = """---
{metadata}
---

# Focus adapter for {base}

Learned token groups for the attention of `{base}`: nearby tokens attend fully, distant ones only within their group.
The base model's weights are unchanged. {parameters:,} trained parameters in {layers} of {all_layers} layers.

```python
from focus_retrofit import load_adapter, load_pretrained

model, tokenizer = load_pretrained("{load}"{positions})
load_adapter(model, "path/or/name/of/this/adapter")
```

| option | value |
|---|---|
{options}

## Results

{results}
"""


def make_card(described: Mapping[str, Any]) -> str:
    """The card of an adapter from its saved description."""
    model, config = described["base_model"], described["config"]
    name = model["name"]
    on_hub = name if name and not Path(name).is_absolute() and name.count("/") == 1 else None
    metadata = ModelCardData(
        library_name="focus_retrofit",
        base_model=on_hub,
        pipeline_tag="text-generation",
        tags=["focus-retrofit", "sparse-attention", "long-context", "adapter", model["model_type"]],
        focus={
            "num_groups": config["num_groups"],
            "top_k": config["top_k"],
            "window": config["window"],
            "parameters": described["parameters"],
            "version": described["focus_version"],
        },
    )
    packaged = [key for key, one in PACKAGED.items() if name and Path(one.file).stem == name]
    results = described.get("results") or {}
    table = "\n".join(f"| {_cell(key)} | {_cell(value)} |" for key, value in results.items())
    return TEXT.format(
        metadata=metadata.to_yaml(),
        base=on_hub or (Path(name).name if name else f"a {model['model_type']} model"),
        positions=_positions(model.get("positions")),
        load=(packaged or [on_hub or "path/of/the/model"])[0],
        parameters=described["parameters"],
        layers=len(described["layers"]),
        all_layers=model["num_layers"],
        options="\n".join(f"| {key} | {_cell(value)} |" for key, value in sorted(config.items())),
        results="| measure | value |\n|---|---|\n" + table if results else "None were recorded when this was saved.",
    )


def _positions(extended: Mapping[str, Any] | None) -> str:
    """The options that extend positions as they were when this was saved."""
    if not extended:
        return ""
    factor = "" if extended["factor"] is None else f", rope_factor={extended['factor']}"
    return f', rope="{extended["rope"]}"{factor}'


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
