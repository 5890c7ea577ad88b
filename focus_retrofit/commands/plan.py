"""`focus-retrofit plan`: what training a model's routers takes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from .options import Command, as_json, config_file

if TYPE_CHECKING:
    from ..plan import Plan, Way


WIDTH = 125  # columns of a table, where the terminal has fewer or there is none
PARTS = ("weights", "adapter", "activations", "attention", "logits", "reserve")


@click.command("plan", cls=Command)
@click.option("--model", required=True, help="A known model (llama-2-7b, ...), a directory, or a name on the hub.")
@click.option("--gpus", default=1, show_default=True, help="Number of GPUs.")
@click.option("--gpu", default=None, help="Kind of GPU, such as h100-80 or rtx4090-24.  [default: a100-80]")
@click.option("--gpu-memory", type=float, help="GB of each GPU, where it is not the named kind's.")
@click.option("--gpu-tflops", type=float, help="Dense half-precision TFLOPS of each GPU.")
@click.option("--bandwidth", type=float, help="GB/s at which each GPU receives weights (FSDP2).")
@click.option("--length", default=2048, show_default=True, help="Tokens of a training text.")
@click.option("--batch", default=1, show_default=True, help="Texts per GPU and step.")
@click.option("--objective", default="lm-hard", show_default=True, help="lm, lm-hard, mass or distill.")
@click.option("--num-groups", "--groups", "groups", default=8, show_default=True, help="Groups per layer, K.")
@click.option("--top-k", default=2, show_default=True, help="Groups each query looks into.")
@click.option("--group-dim", default=16, show_default=True, help="Size of the routers' projection.")
@click.option("--explore", type=int, help="Groups per query that get a gradient.  [default: all]")
@click.option("--window", default=128, show_default=True, help="Nearest tokens that are always visible.")
@click.option("--steps", default=1000, show_default=True, help="Training steps.")
@click.option("--utilisation", default=0.4, show_default=True, help="Share of the GPU's peak speed that is reached.")
@click.option(
    "--checkpointing",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Gradient checkpointing; auto: where it does not fit without.",
)
@config_file
@as_json
def command(
    model: str,
    gpus: int,
    gpu: str | None,
    gpu_memory: float | None,
    gpu_tflops: float | None,
    bandwidth: float | None,
    groups: int,
    top_k: int,
    group_dim: int,
    explore: int | None,
    window: int,
    checkpointing: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Memory and time of training the routers of a model, for each way to use the GPUs."""
    from ..config import FocusConfig
    from ..plan import plan
    from ..plan_hardware import find_gpu

    if gpu is None and gpu_memory is None and gpu_tflops is None:
        gpu = "a100-80"
    focus = FocusConfig(
        num_groups=groups,
        top_k=top_k,
        group_dim=group_dim,
        explore=explore,
        window=window,
        sinks=min(4, max(window, 0)),
    )
    found = plan(
        model,
        gpu=find_gpu(gpu, gpu_memory, gpu_tflops, bandwidth),
        gpus=gpus,
        focus=focus,
        checkpointing={"auto": None, "on": True, "off": False}[checkpointing],
        **options,
    )
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        print_plan(found)


def print_plan(found: Plan) -> None:
    """A table with one line per way, why those that do not fit do not, and how to start the recommended one."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, highlight=False)
    console.width = max(console.width, WIDTH)
    run, best = found.run, found.recommended
    console.print(
        f"{run.model.name}: {run.model.parameters / 1e9:.2f}B parameters, routers {run.adapter / 1e6:.2f}M; "
        f"{found.gpus} x {found.gpu.name} ({found.gpu.memory:g} GB); {run.objective}, {run.batch} x {run.length} "
        f"tokens per step and GPU, {run.steps} steps",
        soft_wrap=True,
    )
    caption = "GB on the fullest GPU, and what they are for"
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("way", no_wrap=True)
    for column in ("GB", *PARTS, "checkpointing", "s/step", "tokens/s", "hours"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    for way in found.ways:
        table.add_row(*_row(way, best), style="bold" if way is best else None if way.fits else "dim")
    console.print(table)
    for way in found.ways:
        if not way.fits:
            console.print(f"{way.name}: {way.reason}", soft_wrap=True)
    for line in found.assumptions:
        console.print(f"assumed: {line}", soft_wrap=True)
    if best is None:
        console.print("Nothing fits: try more or larger GPUs, a shorter --length, or --objective mass.", soft_wrap=True)
        return
    console.print(f"\nRecommended: {best.name} ({best.title})", soft_wrap=True)
    console.print(f"  {best.launch}", soft_wrap=True, markup=False)
    console.print(f"  {best.load}", soft_wrap=True, markup=False)
    if best.checkpointing and best.name != "fsdp2":
        console.print("  TrainingArguments(..., gradient_checkpointing=True)", soft_wrap=True, markup=False)


def _row(way: Way, best: Way | None) -> list[str]:
    if way.memory is None:
        return [way.name, *["-"] * (len(PARTS) + 5), "no"]
    sizes = way.memory.to_dict()
    return [
        way.name,
        *(f"{sizes[part] / 1e9:.1f}" for part in ("total", *PARTS)),
        "yes" if way.checkpointing else "no",
        f"{way.seconds:.3g}",
        f"{way.tokens_per_second:,.0f}",
        f"{way.hours:.3g}",
        "best" if way is best else "yes" if way.fits else "no",
    ]
