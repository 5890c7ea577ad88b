"""`focus-retrofit eval`: perplexity by method, with the density it was had at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .options import Command, as_json, model_options


@click.command("eval", cls=Command)
@model_options
@click.argument("text")
@click.option("--methods", default="full,window,random,strided,focus,soft", show_default=True,
              help="full, window, random, strided, focus, soft; 'focus:2' looks into two groups.")  # fmt: skip
@click.option("--length", default=1024, show_default=True, help="Tokens of a window.")
@click.option("--windows", default=8, show_default=True, help="Windows, spread over the text; 0 for all.")
@click.option("--column", default="text", show_default=True, help="Column of the text, in tables.")
@click.option("--split", default="test", show_default=True, help="Split of a dataset on the hub.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write the results here too; called again, goes on.")
@as_json
def command(
    text: str, methods: str, length: int, windows: int, output: str | None, as_json: bool, **options: Any
) -> None:
    """Perplexity of MODEL on TEXT (a file, a directory, a pattern, a dataset on the hub, '-', or the held-out part of a
    text that comes along: reference, source, books), with full attention, with Focus, and with what knows less."""
    from ..benchmark import machine_facts, versions
    from ..evaluation import evaluate, parse_methods
    from ..evaluation.methods import compare
    from ..evaluation.texts import windows_of
    from ..record import Record, model_facts
    from .load import load_focused
    from .texts import read_texts

    wanted = parse_methods(methods)
    asked = {**options, "text": text, "length": length, "windows": windows}
    record = Record(Path(output) if output else None, {name: x for name, x in asked.items() if x not in (None, False)})
    load = {name: options.pop(name) for name in ("column", "split")}
    documents = read_texts(text, **load)
    model, tokenizer = load_focused(options)
    cut = windows_of(documents, f"text {text!r}", tokenizer, length, windows or None)
    record.update(model=model_facts(model), config=model.focus.config.to_dict(), tokens=length, counted=len(cut))
    record.update(versions=versions(), machine=machine_facts())
    rows: dict[str, Any] = record.setdefault("rows", {})
    for method, k in wanted:
        name = method if k is None else f"{method}:{k}"
        if name not in rows:
            rows[name] = evaluate(model, cut, [(method, k)])[0]
            record.save()
    shown = [rows[method if k is None else f"{method}:{k}"] for method, k in wanted]
    compare(shown)
    record.save()
    if as_json:
        click.echo(json.dumps({**record, "rows": shown}, indent=2))
    else:
        print_rows(shown)


def print_rows(rows: list[dict[str, Any]]) -> None:
    """A table: the difference from full attention is paired, over the same windows."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("attention", no_wrap=True)
    for column in ("perplexity", "±", "over full", "± ", "all pairs", "distant", "largest group"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["method"],
            f"{row['perplexity']:.3f}",
            _number(row["standard_error"], "{:.3f}"),
            _number(row.get("over_full"), "{:+.2%}"),
            _number(row.get("over_full_error"), "{:.2%}"),
            f"{row['density']:.1%}",
            f"{row['distant']:.1%}",
            _number(row.get("largest_group"), "{:.0%}"),
        )
    Console(highlight=False).print(table)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
