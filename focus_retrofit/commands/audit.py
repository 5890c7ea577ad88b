"""`focus-retrofit audit`: the exit code says whether everything holds."""

from __future__ import annotations

import json
from typing import Any

import click

from .lists import Tokens
from .options import Command, as_json, model_options


@click.command("audit", cls=Command)
@model_options
@click.option("--text", help="A file or a text that comes along to audit with.  [default: the Python reference]")
@click.option("--length", default=1024, show_default=True, type=Tokens(), help="Tokens of it.")
@click.option("--largest-group", type=float, help="Share one group may hold in a layer.  [default: 2 / K]")
@as_json
@click.pass_context
def command(
    ctx: click.Context, /, text: str | None, length: int, largest_group: float | None, as_json: bool, **options: Any
) -> None:
    """Check MODEL with an adapter: that they belong together, nothing leaks from the future, groups are balanced, short
    texts and k = K equal the base, attention and cache are exact. Exit code 0: all holds; 1: not."""
    from ..audit import audit
    from .load import load_focused
    from .texts import first_window, read_texts

    source = text or "reference"
    documents = read_texts(source)
    model, tokenizer = load_focused(options)
    found = audit(model, first_window(documents, source, tokenizer, length), largest_group=largest_group)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        print_audit(found)
    ctx.exit(0 if found.holds else 1)


def print_audit(found: Any) -> None:
    """A line per check."""
    words = {True: "holds", False: "FAILS", None: "-"}
    for check in found.checks:
        value = "" if check.value is None else f"{check.value:.4g}"
        limit = "" if check.limit is None else f"{check.limit:.4g}"
        click.echo(f"{words[check.holds]:6} {check.name:36} {value:>9} {limit:>8}  {check.detail}")
    click.echo("everything holds" if found.holds else "NOT everything holds")
