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
from .lists import Tokens
from .options import FOCUS, Command, Function, as_json, chosen, config_file, model_options, options_of

if TYPE_CHECKING:
    from ..benchmark.rows import Row

SAMPLES = 4  # windows of the text that is read, to balance untrained routers on: uneven groups are slow
SHARED = (
    click.option("--lengths", default="1K,2K,4K,8K", show_default=True, help="Tokens; K and M are 1024 and 1024^2."),
    click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Best of this many, in turn."),
    click.option("--output", type=click.Path(dir_okay=False), help="Write the rows here as they come."),
    click.option("--plot", type=click.Path(dir_okay=False), help="Draw them here: .png, .svg or .pdf."),
    as_json,
)


def shared(function: Function) -> Function:
    for decorate in reversed(SHARED):
        function = decorate(function)
    return function


@click.group("bench")
def command() -> None:
    """Time Focus against the fastest full attention there is here; every speed is checked for exactness first."""


LAYER = (
    click.option("--heads", default="9/3", show_default=True, help="Query heads, or query/key heads."),
    click.option("--head-size", default=64, show_default=True, type=click.IntRange(1)),
    click.option(
        "--dtype", default="float32", show_default=True, type=click.Choice(["float32", "bfloat16", "float16"])
    ),
    click.option("--device", default="cpu", show_default=True),
    shared,
    config_file,
    options_of(FocusConfig, FOCUS),
)


def layer_options(function: Function) -> Function:
    for decorate in reversed(LAYER):
        function = decorate(function)
    return function


@command.command("kernel", cls=Command)
@layer_options
def kernel(**options: Any) -> None:
    """One attention layer, whole sequence."""
    from ..benchmark import bench_kernel

    measure(of_layer(bench_kernel, options), options)


@command.command("training", cls=Command)
@layer_options
@click.option("--soft/--no-soft", default=True, help="Also the dense soft gate, up to 4K.  [default: soft]")
def training(soft: bool, **options: Any) -> None:
    """One attention layer in a training step, forward and backward: lm-hard with --explore groups (by default k, and
    all), and the soft gate."""
    from ..benchmark import bench_training

    measure(of_layer(bench_training, options, soft=soft), options)


def of_layer(bench: Callable[..., list[Row]], options: dict[str, Any], **more: Any) -> Callable[..., list[Row]]:
    """A benchmark of a layer with the shape that the options give; takes them out."""
    heads, size, device = options.pop("heads"), options.pop("head_size"), options.pop("device")
    parts = heads.split("/")
    if len(parts) > 2 or not all(part.isdigit() and int(part) for part in parts):
        raise FocusError(f"heads is {heads!r}; write a number of heads, or query/key heads as in 9/3")
    focus = FocusConfig(**chosen(FocusConfig, options))
    import torch

    dtype = getattr(torch, options.pop("dtype"))

    def work(lengths: str, **rest: Any) -> list[Row]:
        return bench(lengths, focus, (int(parts[0]), int(parts[-1])), size, dtype, device=device, **more, **rest)

    return work


first_layers = click.option(
    "--first-layers", type=click.IntRange(1), help="Of the model only so many layers: all would take hours at 1M."
)
in_chunks = click.option(
    "--chunk", default="4K", show_default=True, type=Tokens(), help="Prompts are read so many tokens at once."
)


@command.command("prefill", cls=Command)
@model_options
@in_chunks
@click.option(
    "--exact",
    default="32K",
    show_default=True,
    type=Tokens(),
    help="Full attention of longer prompts is timed in samples.",
)
@first_layers
@click.option(
    "--memory/--no-memory", default=True, help="Also memory, in one more run of each side.  [default: memory]"
)
@shared
def prefill(chunk: int, exact: int, memory: bool, **options: Any) -> None:
    """MODEL reading prompts, up to the first token."""
    from ..benchmark import bench_prefill
    from .load import load_focused

    model, tokenizer = load_focused(options, windows=SAMPLES)
    how: dict[str, Any] = {"chunk": chunk, "exact": exact, "memory": memory}
    measure(lambda lengths, **rest: bench_prefill(model, tokenizer, lengths, **how, **rest), options)


@command.command("decode", cls=Command)
@model_options
@click.option("--new-tokens", default=32, show_default=True, type=click.IntRange(1), help="Tokens after each prompt.")
@in_chunks
@first_layers
@shared
def decode(new_tokens: int, chunk: int, **options: Any) -> None:
    """MODEL writing tokens, one at a time, after prompts."""
    from ..benchmark import bench_decode
    from .load import load_focused

    model, tokenizer = load_focused(options, windows=SAMPLES)
    measure(lambda lengths, **rest: bench_decode(model, tokenizer, lengths, new_tokens, chunk=chunk, **rest), options)


@command.command("step", cls=Command)
@model_options
@shared
def step(**options: Any) -> None:
    """MODEL in a whole training step: loss and backward of its routers, against the base model's."""
    from ..benchmark import bench_step
    from .load import load_focused

    model, tokenizer = load_focused(options, windows=SAMPLES)
    measure(lambda lengths, **rest: bench_step(model, tokenizer, lengths, **rest), options)


@command.command("compare", cls=Command)
@click.argument("first")
@click.argument("second")
@click.option("--threshold", default="5%", show_default=True, help="What is no change, whatever the noise: 5% or 0.05.")
@click.option("--fail-on-slower", is_flag=True, help="Exit with 1 where a speedup fell.")
@as_json
def compare(first: str, second: str, threshold: str, fail_on_slower: bool, as_json: bool) -> None:
    """What moved from one file of a benchmark to another, beyond noise."""
    from ..benchmark import compare_benches, comparison, read_bench

    found = compare_benches(read_bench(first), read_bench(second), share(threshold))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        show(comparison(found))
    if fail_on_slower and any(row["verdict"] == "slower" for row in found["rows"]):
        sys.exit(1)


@command.command("plot", cls=Command)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--output", default="bench.png", show_default=True, help="A .png, .svg or .pdf.")
def plot(files: tuple[str, ...], output: str) -> None:
    """Speed, memory and how cost grows, of one file or of several in one picture."""
    from ..benchmark import plot_bench

    click.echo(f"wrote {plot_bench(files, output)}")


def share(text: str) -> float:
    """'5%' or '0.05'."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise FocusError(f"threshold is {text!r}; write a share such as 5% or 0.05") from None


def measure(work: Callable[..., list[Row]], options: dict[str, Any]) -> None:
    """Run a benchmark, keep each row as it comes, print them and draw them."""
    from ..benchmark import bench_record, keep_rows, table

    if options["plot"]:
        from ..benchmark.plot import check_output

        check_output(options["plot"])
    command = " ".join(["focus-retrofit", *sys.argv[1:]])
    keep = keep_rows(Path(options["output"]), command) if options["output"] else None
    rows = work(options["lengths"], repeats=options["repeats"], on_row=keep)
    record = bench_record(rows, command)
    if options["as_json"]:
        click.echo(json.dumps(record, indent=2))
    else:
        show(table(rows))
    if options["plot"]:
        from ..benchmark import plot_records

        plot_records([(Path(options["plot"]).stem, record)], options["plot"])


def show(found: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.width = max(console.width, 130)
    console.print(found)
