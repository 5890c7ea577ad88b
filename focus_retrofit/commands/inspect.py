"""`focus-retrofit inspect`: the groups of a text, in the terminal or as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .lists import Tokens
from .options import Command, as_json, model_options

COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "red", "bright_blue", "bright_yellow", "bright_green",
           "bright_magenta", "bright_cyan", "bright_red")  # fmt: skip


@click.command("inspect", cls=Command)
@model_options
@click.argument("text")
@click.option("--length", default=512, show_default=True, type=Tokens(), help="First tokens to look at.")
@click.option("--layer", type=int, help="Layer to show in the terminal.  [default: the middle one]")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a page with all layers here.")
@as_json
def command(text: str, length: int, layer: int | None, html: str | None, as_json: bool, **options: Any) -> None:
    """Which groups the tokens of TEXT (a file, '-', or a text that comes along) are in, which tokens make up a group,
    and how much of full attention's weight on distant pairs the groups keep."""
    from focus_kernels import FocusError

    from ..inspection import inspect_text
    from .load import load_focused
    from .texts import first_window, read_texts

    documents = read_texts(text)
    model, tokenizer = load_focused(options)
    found = inspect_text(model, tokenizer, first_window(documents, text, tokenizer, length))
    indices = [one["layer"] for one in found["layers"]]
    layer = indices[len(indices) // 2] if layer is None else layer
    if layer not in indices:
        raise FocusError(f"layer {layer} is not retrofitted; these are: {', '.join(map(str, indices))}")
    if html:
        from ..report import write_inspection

        write_inspection(found, Path(html), f"Groups of {text}")
    if as_json:
        click.echo(json.dumps(found))
        return
    print_layer(found, found["layers"][indices.index(layer)])
    if html:
        click.echo(f"written: {html}")


def print_layer(found: dict[str, Any], layer: dict[str, Any]) -> None:
    """The text in colours of its groups, then a line per group."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    line = Text()
    for token, groups in zip(found["tokens"], layer["groups"], strict=True):
        line.append(token, style=COLOURS[groups[0] % len(COLOURS)])
    console.print(line)
    kept = "" if layer["kept"] is None else f", which hold {layer['kept']:.0%} of full attention's weight on such pairs"
    distant = (
        "no distant pair" if layer["distant"] is None else f"{layer['distant']:.0%} of the distant pairs seen{kept}"
    )
    console.print(f"\nlayer {layer['layer']}: {distant}", soft_wrap=True)
    for group, (share, top) in enumerate(zip(layer["shares"], layer["top"], strict=True)):
        words = Text(f"group {group} {share:5.1%}  ", style=COLOURS[group % len(COLOURS)])
        words.append("  ".join(f"{one['token']!r} {one['count']}" for one in top), style="default")
        console.print(words, soft_wrap=True)
