"""`focus-retrofit compare`: Focus beside what one would use instead, on the same model, texts and items."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from focus_kernels.errors import FocusError

from ..benchmark.options import parse_tokens
from .lists import names, numbers
from .options import Command, as_json, model_options, printing

METHODS = "full,focus,focus:2,window,wide,longformer,random,strided,routing,moba,seer,sparq,h2o,lora:4,finetune"


@click.command("compare", cls=Command)
@model_options
@click.argument("text", default="reference")
@click.option("--methods", default=METHODS, show_default=True, help="What to compare; 'wide:2' computes as many pairs "
              "as 'focus:2', 'lora:8@1e-4' has rank 8.")  # fmt: skip
@click.option(
    "--also", callback=names, help="More texts to read, as 'books,source': what training on TEXT costs there."
)
@click.option(
    "--lengths", default="1024", callback=numbers(parse_tokens), show_default=True, help="Tokens of a window."
)
@click.option("--windows", default=6, show_default=True, help="Windows of each text and length.")
@click.option("--train-windows", default=24, show_default=True, help="For the methods that learn.")
@click.option("--steps", default=60, show_default=True, help="Of LoRA and full fine-tuning, a window each.")
@click.option("--tasks", callback=names, help="Benchmarks: focus_hellaswag, focus_piqa, ... (see eval --help).")
@click.option("--shots", default=0, show_default=True, help="Solved examples before each item.")
@click.option("--items", default=50, show_default=True, help="Of each benchmark.")
@click.option("--retrieval", callback=names, help="passkey, needle, manyshot, copy, induction.")
@click.option("--retrieval-lengths", default="1024", callback=numbers(parse_tokens), show_default=True)
@click.option("--depths", default="0.1,0.5,0.9", callback=numbers(float), show_default=True)
@click.option("--retrieval-items", default=4, show_default=True, help="Of each length and depth.")
@click.option("--output", default="runs/compare", show_default=True, help="Folder; called again, goes on.")
@as_json
def command(output: str, as_json: bool, **options: Any) -> None:
    """The table and the picture: MODEL on TEXT (reference, source, books, legal, medical, or a file or folder, of which
    a part is held out) with Focus and its rivals, at the same window, sinks and share of distant pairs."""
    from dataclasses import fields

    from ..benchmark import machine_facts, versions
    from ..evaluation import parse_methods
    from ..evaluation.comparison import Comparison, Wanted, markdown, table, written
    from ..evaluation.texts import documents
    from ..record import Record, model_facts
    from .load import load_focused, tensors_of
    from .texts import read_texts

    methods = parse_methods(options["methods"])
    if methods[0].name != "full":
        raise FocusError("the first method is what the others are compared with: begin with 'full'")
    asked = {name: list(x) if isinstance(x, tuple) else x for name, x in options.items()}
    taken = {field.name: options.pop(field.name) for field in fields(Wanted)}
    wanted = Wanted(**{**taken, "methods": methods})
    asked.pop("methods")  # more of them may join
    asked["tensors"] = tensors_of(options)
    folder = Path(output)
    record = Record(folder / "results.json", {name: x for name, x in asked.items() if x not in (None, False, [])})
    record["command"] = shlex.join(["focus-retrofit", *sys.argv[1:]])
    training, held = documents(wanted.text)
    texts = {wanted.text: held, **{name: list(read_texts(name)) for name in wanted.also}}
    with printing(as_json):
        model, tokenizer = load_focused(options)
        record.update(model=model_facts(model), config=model.focus.config.to_dict())
        record.update(versions=versions(), machine=machine_facts())
        Comparison(model, tokenizer, wanted, record, training, texts, lambda line: click.echo(line, err=True)).run()
    record["table"] = table(record, methods)
    record.save()
    files = written(record, methods, folder)
    if as_json:
        click.echo(json.dumps(record, indent=2))
        return
    click.echo(markdown(record["table"]))
    for file in (folder / "results.json", *files):
        click.echo(f"written: {file}")
