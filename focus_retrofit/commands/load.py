"""From the options of a command to a model with Focus attention."""

from __future__ import annotations

from typing import Any

import click

from ..config import FocusConfig
from .options import chosen

SHIPPED_FOR = {"smollm2-135m": "smollm2-135m-mixed"}
SAMPLE = 2048  # tokens of a window to balance untrained routers on


def load_base(options: dict[str, Any]) -> tuple[Any, Any]:
    """The base model and its tokenizer; takes its options out of `options`."""
    import torch

    from ..models import keep_first_layers, load_pretrained

    name, dtype = options.pop("model"), getattr(torch, options.pop("dtype"))
    device_map, in_4bit = options.pop("device_map"), options.pop("load_in_4bit")
    loading: dict[str, Any] = {"trust_remote_code": options.pop("trust_remote_code")}
    if device_map:
        loading["device_map"] = device_map
    if in_4bit:
        from transformers import BitsAndBytesConfig

        loading["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        )
    rope = {name: options.pop(name) for name in ("rope", "rope_factor")}
    layers = options.pop("first_layers", None)
    quiet_libraries()
    model, tokenizer = load_pretrained(name, dtype=dtype, **rope, **loading)
    if layers is not None:
        keep_first_layers(model, layers)
    return model, tokenizer


def adapter_of(options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Which adapter the options ask for, 'none' for untrained routers; and what they say of FocusConfig."""
    adapter, given = options["adapter"], chosen(FocusConfig, dict(options))
    if adapter == "auto":
        from ..surgery import AFTERWARDS

        adapter = SHIPPED_FOR.get(str(options["model"]).lower(), "none") if set(given) <= AFTERWARDS else "none"
    return adapter, given


def tensors_of(options: dict[str, Any]) -> str | None:
    """The digest of the trained adapter that the options ask for: what another of its name left is not its own."""
    from ..adapter import describe_adapter, find_adapter

    adapter, _ = adapter_of(options)
    return None if adapter == "none" else describe_adapter(find_adapter(adapter)).get("tensors")


def load_focused(options: dict[str, Any], sample: str | None = None, windows: int = 1) -> tuple[Any, Any]:
    """A retrofitted model and its tokenizer; takes the options it knows out of `options`. Untrained routers are
    balanced on so many windows spread over `sample`, or else over the Python reference."""
    from ..adapter import describe_adapter, find_adapter
    from ..surgery import load_adapter, retrofit, served_with

    adapter, given = adapter_of(options)
    backend, own = options.pop("backend"), options.pop("adapter") != "auto"
    chosen(FocusConfig, options)
    if adapter == "none":
        config = FocusConfig(**given)
        model, tokenizer = load_base(options)
        retrofit(model, config, backend=backend)
        click.echo("routers: untrained, balanced on a sample text (see `focus-retrofit train`)", err=True)
        if config.balance == "potentials":
            model.focus.balance(*(ids.to(model.device) for ids in sample_windows(tokenizer, sample, windows)))
        return model, tokenizer
    saved = FocusConfig.from_dict(describe_adapter(find_adapter(adapter))["config"])
    served_with(saved, given)  # mistakes show before anything is loaded
    model, tokenizer = load_base(options)
    load_adapter(model, adapter, backend=backend, changes=given)
    if not own:
        click.echo(f"adapter: {adapter} (comes along; --adapter none for untrained routers)", err=True)
    return model, tokenizer


def sample_windows(tokenizer: Any, text: str | None = None, count: int = 1) -> list[Any]:
    """At most `count` windows [1, T] spread over a text, or over the Python reference where there is hardly any."""
    ids = tokenizer(text or "", return_tensors="pt", verbose=False).input_ids.long()
    if ids.shape[-1] < SAMPLE // 4:
        from pydoc_data.topics import topics

        text = topics["import"] if count == 1 else "\n\n".join(topics.values())
        ids = tokenizer(text, return_tensors="pt", verbose=False).input_ids.long()
    step = max(ids.shape[-1] // count, SAMPLE)
    last = max(ids.shape[-1] - SAMPLE // 4, 1)  # what is left after it is no sample
    return [ids[:, start : start + SAMPLE] for start in range(0, last, step)][:count]


def quiet_libraries() -> None:
    """What libraries say while they load is theirs: progress and results stay readable."""
    import logging
    import warnings

    from transformers.utils import logging as library

    library.set_verbosity_error()
    library.disable_progress_bar()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
