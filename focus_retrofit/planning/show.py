"""Plans and checks as tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..parallel.traffic import KINDS
from .advice import advice
from .check import Check
from .inference import Serving
from .inference import Way as Served
from .training import Plan, Way

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH, WIDE = 125, 150  # columns of a table, where the terminal has fewer or there is none
PARTS = ("weights", "adapter", "activations", "attention", "logits", "reserve")
HELD = ("weights", "cache", "activations", "workspace")


def print_plan(found: Plan) -> None:
    """A table with one line per way to train, why those that do not fit do not, and how to start the recommended."""
    console = _console()
    run, best = found.run, found.recommended
    console.print(
        f"{run.model.name}: {run.model.parameters / 1e9:.2f}B parameters, routers {run.adapter / 1e6:.2f}M; "
        f"{found.gpus} x {found.gpu.name} ({found.gpu.memory:g} GB); {run.objective}, {run.batch} x {run.length} "
        f"tokens per step and GPU, {run.steps} steps",
        soft_wrap=True,
    )
    table = _table("GB on the fullest GPU, and what they are for")
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


def print_serving(found: Sequence[Serving]) -> None:
    """A line per context, number of GPUs and way; full attention beside Focus."""
    console = _console(WIDE)
    ask = found[0].ask
    console.print(
        f"{ask.model.name}: {ask.model.parameters / 1e9:.2f}B parameters; {ask.gpu.name} ({ask.gpu.memory:g} GB); "
        f"K = {ask.focus.num_groups}, k = {ask.focus.top_k}; of two numbers the first is of full attention",
        soft_wrap=True,
    )
    table = _table(
        "GB on each GPU, and what they are for with Focus; attention: its share of full attention's prefill; first s: "
        "until the first token; tokens/s after it"
    )
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("GPUs", justify="right", no_wrap=True)
    table.add_column("way", no_wrap=True)
    columns = ("GB", *HELD, "attention", "first s", "speedup", "tokens/s", "speedup")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    for serving in found:
        best = serving.best
        for way in serving.ways:
            style = "bold" if way is best else None if way.focus.fits else "dim"
            table.add_row(*_served(serving, way), style=style, end_section=way is serving.ways[-1])
    console.print(table)
    for serving in found:
        line = advice(serving)
        if line is not None:
            console.print(line, soft_wrap=True)
    short = sorted({one.ask.context for one in found if one.best is not None and one.best.prefill_speedup < 1})
    if short:
        text = f"Full attention reads faster at {', '.join(map(_tokens, short))}: keep such prompts dense (min_length)."
        console.print(text, soft_wrap=True)
    for line in found[0].assumptions:
        console.print(f"assumed: {line}", soft_wrap=True)


def _served(serving: Serving, way: Served) -> list[str]:
    full, focus, held = way.full, way.focus, way.focus.memory.to_dict()
    rates = [_number(side.tokens_per_second) for side in (full, focus)]
    best = way is serving.best
    return [
        _tokens(serving.ask.context),
        str(serving.ask.gpus),
        way.name,
        f"{full.memory.total / 1e9:.1f} / {focus.memory.total / 1e9:.1f}",
        *(f"{held[part] / 1e9:.1f}" for part in HELD),
        f"{way.attention_share:.0%}",
        f"{_number(full.first_token)} / {_number(focus.first_token)}",
        f"{way.prefill_speedup:.2f}",
        " / ".join(rates) if rates != ["-", "-"] else "-",
        _number(way.decode_speedup, ".2f"),
        "best" if best else "yes" if focus.fits else "full only" if full.fits else "no",
    ]


def print_check(found: Check) -> None:
    """Predicted over measured, row by row."""
    console = _console()
    table = _table(
        "ratios: predicted over measured; cache: Focus's over a full one's, measured / predicted; fitted: rows that "
        "the rates were fitted on"
    )
    table.add_column("part", no_wrap=True)
    for column in ("tokens", "full s", "ratio", "Focus s", "ratio", "speedup", "predicted", "cache"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("fitted", no_wrap=True)
    table.add_column("setup")
    for row in found.predictions:
        table.add_row(
            row.part,
            f"{row.tokens:,}",
            f"{row.full:.3g}",
            f"{row.full_ratio:.2f}",
            f"{row.focus:.3g}",
            f"{row.focus_ratio:.2f}",
            f"{row.speedup:.2f}",
            f"{row.speedup_predicted:.2f}",
            "-" if row.memory is None else f"{row.memory:.2f} / {row.memory_predicted:.2f}",
            "yes" if row.fitted else "",
            row.setup,
        )
    console.print(table)
    for line in found.skipped:
        console.print(f"skipped: {line}", soft_wrap=True, markup=False)
    rows = [row for row in found.predictions if not row.fitted]
    if rows:
        text = f"Of {len(rows)} rows that no rate was fitted on, the worst is missed by a factor of {found.worst:.2f}."
        console.print(text, soft_wrap=True)


def print_traffic(found: Sequence[dict[str, Any]]) -> None:
    """Bytes between processes, run by run."""
    console = _console()
    table = _table("bytes of all ranks; ratios: predicted over measured; ring: ring attention's over these")
    for column in ("tokens", "ranks", "K", "k", "measured", "predicted", "ratio", *KINDS, "ring"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in found:
        table.add_row(
            *(f"{row[name]:,}" for name in ("tokens", "ranks", "num_groups", "top_k", "measured")),
            f"{row['predicted']:,.0f}",
            f"{row['ratio']:.2f}",
            *(_number(row["ratios"].get(kind), ".2f") for kind in KINDS),
            f"{row['less_than_ring']:.2f}",
        )
    console.print(table)


def _console(width: int = WIDTH) -> Console:
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    console.width = max(console.width, width)
    return console


def _table(caption: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption=caption, caption_justify="left")


def _number(value: float | None, form: str = ".3g") -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if form == ".3g" and value >= 1000 else format(value, form)


def _tokens(count: int) -> str:
    for size, name in ((1024**2, "M"), (1024, "K")):
        if count % size == 0:
            return f"{count // size}{name}"
    return f"{count:,}"
