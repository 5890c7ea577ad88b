"""`focus-retrofit bench`: what Focus gains, or loses, against full attention, length by length."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from focus_kernels.errors import FocusError

from ..config import FocusConfig
from .options import FOCUS, Command, Function, as_json, chosen, config_file, model_options, options_of

if TYPE_CHECKING:
    from ..benchmark.rows import Row

SHARED = (
    click.option("--lengths", default="1K,2K,4K,8K", show_default=True, help="Tokens; K and M are 1024 and 1024^2."),
    click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Best of this many, in turn."),
    click.option("--output", type=click.Path(dir_okay=False), help="Write the rows here as they come."),
    as_json,
)


def shared(function: Function) -> Function:
    for decorate in reversed(SHARED):
        function = decorate(function)
    return function


@click.group("bench")
def command() -> None:
    """Time Focus against the fastest full attention there is here; every speed is checked for exactness first."""


@command.command("kernel", cls=Command)
@click.option("--heads", default="9/3", show_default=True, help="Query heads, or query/key heads.")
@click.option("--head-size", default=64, show_default=True, type=click.IntRange(1))
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(["float32", "bfloat16", "float16"]))
@click.option("--device", default="cpu", show_default=True)
@shared
@config_file
@options_of(FocusConfig, FOCUS)
def kernel(heads: str, head_size: int, dtype: str, device: str, **options: Any) -> None:
    """One attention layer, whole sequence."""
    parts = heads.split("/")
    if len(parts) > 2 or not all(part.isdigit() and int(part) for part in parts):
        raise FocusError(f"heads is {heads!r}; write a number of heads, or query/key heads as in 9/3")
    shape = (int(parts[0]), int(parts[-1]))
    focus = FocusConfig(**chosen(FocusConfig, options))
    import torch

    from ..benchmark import bench_kernel

    def work(lengths: str, **rest: Any) -> list[Row]:
        return bench_kernel(lengths, focus, shape, head_size, getattr(torch, dtype), device=device, **rest)

    measure(work, options)


@command.command("prefill", cls=Command)
@model_options
@shared
def prefill(**options: Any) -> None:
    """MODEL reading prompts, up to the first token."""
    from ..benchmark import bench_prefill
    from .load import load_focused

    model, tokenizer = load_focused(options)
    measure(lambda lengths, **rest: bench_prefill(model, tokenizer, lengths, **rest), options)


@command.command("decode", cls=Command)
@model_options
@click.option("--new-tokens", default=32, show_default=True, type=click.IntRange(1), help="Tokens after each prompt.")
@shared
def decode(new_tokens: int, **options: Any) -> None:
    """MODEL writing tokens, one at a time, after prompts."""
    from ..benchmark import bench_decode
    from .load import load_focused

    model, tokenizer = load_focused(options)
    measure(lambda lengths, **rest: bench_decode(model, tokenizer, lengths, new_tokens, **rest), options)


@command.command("compare", cls=Command)
@click.argument("first")
@click.argument("second")
@as_json
def compare(first: str, second: str, as_json: bool) -> None:
    """What moved from one file of a benchmark to another."""
    from ..benchmark import compare_benches, comparison, read_bench

    found = compare_benches(read_bench(first), read_bench(second))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        show(comparison(found))


def measure(work: Callable[..., list[Row]], options: dict[str, Any]) -> None:
    """Run a benchmark, keep each row as it comes, and print them."""
    from ..benchmark import keep_rows, table

    command = " ".join(["focus-retrofit", *sys.argv[1:]])
    keep = keep_rows(Path(options["output"]), command) if options["output"] else None
    rows = work(options["lengths"], repeats=options["repeats"], on_row=keep)
    if options["as_json"]:
        click.echo(json.dumps(rows, indent=2))
    else:
        show(table(rows))


def show(found: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.width = max(console.width, 110)
    console.print(found)
