"""`focus-retrofit train`: options by the names they have in FocusConfig and TrainConfig, read from there."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import click

GIVEN = [
    click.Argument(["model"]),
    click.Argument(["data"]),
    click.Option(["--output"], required=True, help="Folder of the run; called again, it resumes."),
    click.Option(["--held-out"], help="Text to evaluate on, as DATA.  [default: each tenth document of DATA]"),
    click.Option(["--column"], default="text", show_default=True, help="Column of the text, in tables."),
    click.Option(["--split"], default="train", show_default=True, help="Split of a dataset on the hub."),
    click.Option(["--streaming"], is_flag=True, help="Read DATA while training; needs --held-out to evaluate."),
    click.Option(["--only"], help="Stop after this stage: prepare, train or finetune."),
    click.Option(["--device-map"], help="How to lay the model out over devices: auto, cuda, ..."),
    click.Option(["--load-in-4bit"], is_flag=True, help="Quantise the base model (bitsandbytes)."),
    click.Option(["--dtype"], default="float32", show_default=True, help="Of the base model: float32, bfloat16, ..."),
    click.Option(["--json", "as_json"], is_flag=True, help="Print the results as JSON."),
]


class TrainCommand(click.Command):
    """Knows its options only once it is asked for them: they come from modules that load torch."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self.params:
            from .config import FocusConfig
            from .training.options import TrainConfig

            self.params = [*GIVEN, *_options(TrainConfig), *_options(FocusConfig)]
        return super().get_params(ctx)


def _options(kind: Any) -> list[click.Parameter]:
    """An option for every field: --name value, or --name/--no-name."""
    found: list[click.Parameter] = []
    for field in fields(kind):
        name = "--" + field.name.replace("_", "-")
        text = field.metadata["help"] + f"  [default: {field.default if field.default is not MISSING else ''}]"
        if isinstance(field.default, bool):
            found.append(click.Option([f"{name}/--no-{name[2:]}"], default=None, help=text))
        else:
            found.append(click.Option([name], metavar="VALUE", help=text))
    return found


def _value(text: str) -> Any:
    """A number, a list or None where the text is one; otherwise the text."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _chosen(kind: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as values of the fields' kinds."""
    found = {}
    for field in fields(kind):
        value = options.get(field.name)
        if value is not None:
            plain = isinstance(value, bool) or (isinstance(field.default, str) and field.name != "layers")
            found[field.name] = value if plain else _value(value)
    return found


def run(model: str, data: str, output: str, held_out: str | None, as_json: bool, **options: Any) -> None:
    """Train Focus routers for MODEL (a packaged name, a .gguf file, a directory or a name on the hub) on DATA (a file,
    a directory, a pattern, or a dataset on the hub). The adapter ends in OUTPUT/adapter."""
    import torch

    from focus_kernels import FocusError

    from .config import FocusConfig
    from .models import load_pretrained
    from .surgery import retrofit
    from .training import TrainConfig, hold_out, load_texts, train

    focus, training = FocusConfig(**_chosen(FocusConfig, options)), TrainConfig(**_chosen(TrainConfig, options))
    texts: Any = load_texts(data, split=options["split"], column=options["column"], streaming=options["streaming"])
    held: Any = None
    if held_out is not None:
        held = load_texts(held_out, split=options["split"], column=options["column"])
    elif not options["streaming"]:
        texts, held = hold_out(texts)
        held = held or None
    dtype = getattr(torch, options["dtype"], None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise FocusError(f"dtype is {options['dtype']!r}; choose float32, bfloat16 or float16")
    loading: dict[str, Any] = {}
    if options["device_map"]:
        loading["device_map"] = options["device_map"]
    if options["load_in_4bit"]:
        from transformers import BitsAndBytesConfig

        loading["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        )
    loaded, tokenizer = load_pretrained(model, dtype=dtype, **loading)
    retrofit(loaded, focus, seed=training.seed)
    results = train(
        loaded,
        tokenizer,
        texts,
        output,
        held_out=held,
        config=training,
        streaming=options["streaming"],
        only=options["only"],
    )
    if as_json:
        click.echo(json.dumps(results, indent=2))
        return
    for name, stage in results["stages"].items():
        shown = ", ".join(f"{key} {value:.4g}" for key, value in stage.items() if isinstance(value, int | float))
        click.echo(f"{name}: {shown}")
    click.echo(f"written: {Path(output) / 'adapter'}")


command = TrainCommand("train", callback=run, help=run.__doc__, short_help="Train Focus routers for a model on a text.")
