"""`focus-retrofit train`: options by the names they have in FocusConfig and TrainConfig."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..config import FocusConfig
from ..training.options import TrainConfig
from .options import FOCUS, Command, as_json, base_options, chosen, config_file, options_of, printing


@click.command("train", cls=Command)
@base_options
@click.argument("data")
@click.option("--output", required=True, help="Folder of the run; called again, it resumes.")
@click.option("--held-out", help="Text to evaluate on, as DATA.  [default: each tenth document of DATA]")
@click.option("--column", default="text", show_default=True, help="Column of the text, in tables.")
@click.option("--split", default="train", show_default=True, help="Split of a dataset on the hub.")
@click.option("--streaming", is_flag=True, help="Read DATA while training; needs --held-out to evaluate.")
@click.option("--only", help="Stop after this stage: prepare, train or finetune.")
@config_file
@options_of(TrainConfig, "Training")
@options_of(FocusConfig, FOCUS)
@as_json
def command(data: str, output: str, held_out: str | None, as_json: bool, **options: Any) -> None:
    """Train Focus routers for MODEL (a packaged name, a .gguf file, a directory or a name on the hub) on DATA (a file,
    a directory, a pattern, a dataset on the hub, or a text that comes along: reference, source, books, legal, medical,
    mixed). The adapter ends in OUTPUT/adapter."""
    focus, training = FocusConfig(**chosen(FocusConfig, options)), TrainConfig(**chosen(TrainConfig, options))

    from ..evaluation.texts import comes_along, split
    from ..surgery import retrofit
    from ..training import hold_out, load_texts, train
    from .load import load_base

    texts: Any
    held: Any = None
    load = {"split": options["split"], "column": options["column"]}
    if comes_along(data):
        texts, held = split(data)
    else:
        texts = load_texts(data, streaming=options["streaming"], **load)
    if held_out is not None:
        held = load_texts(held_out, **load)
    elif held is None and not options["streaming"]:
        texts, held = hold_out(texts)
    with printing(as_json):
        model, tokenizer = load_base(options)
        retrofit(model, focus, seed=training.seed)
        results = train(
            model,
            tokenizer,
            texts,
            output,
            held_out=held or None,
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
