"""`focus-retrofit eval`: perplexity by method, with the density it was had at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from focus_kernels.errors import FocusError

from .options import Command, as_json, model_options


@click.command("eval", cls=Command)
@model_options
@click.argument("text")
@click.option("--methods", default="full,window,random,strided,focus,soft", show_default=True,
              help="Ways to attend: full, focus, soft, random, strided, window, wide, longformer, moba, sparq, h2o; "
              "'focus:2' looks into two groups, 'wide:2' computes as many pairs.")  # fmt: skip
@click.option("--length", default=1024, show_default=True, help="Tokens of a window.")
@click.option("--windows", default=8, show_default=True, help="Windows, spread over the text; 0 for all.")
@click.option("--stride", type=click.IntRange(1), help="Sliding windows: only the last so many tokens of each are "
              "scored, so that all have a long past; windows begin that far apart.")  # fmt: skip
@click.option("--by-position", is_flag=True, help="Also by position in the window: what the far context is worth.")
@click.option("--column", default="text", show_default=True, help="Column of the text, in tables.")
@click.option("--split", default="test", show_default=True, help="Split of a dataset on the hub.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write the results here too; called again, goes on.")
@as_json
def command(
    text: str,
    methods: str,
    length: int,
    windows: int,
    stride: int | None,
    by_position: bool,
    output: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Perplexity of MODEL on TEXT (a file, a directory, a pattern, a dataset on the hub, '-', or the held-out part of a
    text that comes along: reference, source, books), with full attention, with Focus, and with what knows less."""
    from ..benchmark import machine_facts, versions
    from ..evaluation import evaluate, parse_methods
    from ..evaluation.texts import windows_of
    from ..record import Record, model_facts
    from .load import load_focused
    from .texts import read_texts

    wanted = parse_methods(methods)
    learning = [str(method) for method in wanted if method.learns]
    if learning:
        raise FocusError(f"{', '.join(learning)} must learn from a training text first: use `focus-retrofit compare`")
    if stride is not None and stride >= length:
        raise FocusError(f"a stride of {stride} leaves nothing before it in windows of {length}: use a smaller one")
    asked = {**options, "text": text, "length": length, "windows": windows, "stride": stride}
    record = Record(Path(output) if output else None, {name: x for name, x in asked.items() if x not in (None, False)})
    load = {name: options.pop(name) for name in ("column", "split")}
    documents = read_texts(text, **load)
    model, tokenizer = load_focused(options)
    cut = windows_of(documents, f"text {text!r}", tokenizer, length, windows or None, stride)
    record.update(model=model_facts(model), config=model.focus.config.to_dict(), tokens=length, counted=len(cut))
    record.update(versions=versions(), machine=machine_facts())
    cells: dict[str, Any] = record.setdefault("cells", {})
    rows = evaluate(model, cut, wanted, scored=stride, cells=cells, on_cell=record.save)
    record.setdefault("rows", {}).update(zip(map(str, wanted), rows, strict=True))
    record.save()
    if as_json:
        click.echo(json.dumps({**record, "rows": rows}, indent=2))
        return
    print_rows(rows)
    if by_position:
        print_positions(rows, length)


def print_positions(rows: list[dict[str, Any]], length: int) -> None:
    """Perplexity by range of positions, a column each; only those that were scored."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    bins = len(rows[0]["by_position"])
    shown = [n for n in range(bins) if rows[0]["by_position"][n]]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title="perplexity of the tokens up to a position")
    table.add_column("attention", no_wrap=True)
    for n in shown:
        table.add_column(f"{(length - 1) * (n + 1) // bins + 1:,}", justify="right")
    for row in rows:
        table.add_row(row["method"], *(f"{row['by_position'][n]['perplexity']:.2f}" for n in shown))
    Console(highlight=False).print(table)


def print_rows(rows: list[dict[str, Any]]) -> None:
    """A table: the difference from full attention is paired, over the same windows."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("attention", no_wrap=True)
    for column in ("perplexity", "±", "over full", "± ", "speed", "all pairs", "distant", "largest group"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["method"],
            f"{row['perplexity']:.3f}",
            _number(row["standard_error"], "{:.3f}"),
            _number(row.get("over_full"), "{:+.2%}"),
            _number(row.get("over_full_error"), "{:.2%}"),
            _number(row.get("speed"), "{:.2f}"),
            f"{row['density']:.1%}",
            f"{row['distant']:.1%}",
            _number(row.get("largest_group"), "{:.0%}"),
        )
    Console(highlight=False).print(table)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
