"""One attention layer: Focus against the fastest full FlashAttention, through the kernels' own benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from focus_kernels import FocusError
from focus_kernels.bench import __main__ as kernels
from focus_kernels.bench.gate import Red
from focus_kernels.bench.methods import BLOCK, SAMPLED_BLOCKS
from focus_kernels.bench.problems import Layer

from ..config import FocusConfig
from .options import parse_lengths
from .rows import FOCUS, FULL, Peaks, Row, make_row
from .timing import Note, steps

NAMES = {"full": "one call", "full, balanced": "balanced"}
SAMPLED = f"{SAMPLED_BLOCKS} evenly spaced blocks of {BLOCK} queries against all before them, scaled by pairs"


def bench_kernel(
    lengths: str | Iterable[int],
    focus: FocusConfig,
    heads: tuple[int, int] = (9, 3),
    head_size: int = 64,
    dtype: torch.dtype = torch.float32,
    *,
    device: str = "cpu",
    repeats: int = 3,
    on_row: Callable[[Row], None] | None = None,
    progress: bool = True,
) -> list[Row]:
    """Random tensors and random, even groups; `heads`: of queries and of keys. A wrong answer raises FocusError."""
    base = Layer(
        0,
        focus.num_groups,
        focus.top_k,
        focus.window,
        focus.sinks,
        focus.match,
        *heads,
        size=head_size,
        dtype=dtype,
        device=device,
    )
    rows = []
    with steps("kernel", parse_lengths(lengths), progress) as (todo, note):
        for tokens in todo:
            rows.append(_row(replace(base, tokens=tokens), repeats, note))
            if on_row is not None:
                on_row(rows[-1])
    return rows


def _row(layer: Layer, repeats: int, note: Note) -> Row:
    options = kernels.parse(["--repeats", str(repeats)])
    try:
        found = kernels.measure(layer, options, note)
    except Red as red:
        raise FocusError(f"no speed is reported: {red}") from None
    (focus,) = (result for result in found if result["method"].startswith("focus"))
    times = {}
    for full in found:
        if full is not focus:
            times[FULL + NAMES[full["method"]]] = full["all_seconds"]
    return make_row(
        "kernel",
        layer.tokens,
        {**times, FOCUS: focus["all_seconds"]},
        default=FULL + "one call",
        density=focus["density"],
        attention_share=1.0,
        memory=_peaks(layer, found, focus),
        sampled=SAMPLED if any(result["sampled"] for result in found) else None,
        setup=f"one layer, {layer.q_heads}/{layer.kv_heads} heads of {layer.size}, {options_text(layer)}",
        dtype=str(layer.dtype).removeprefix("torch."),
        device=layer.device,
        threads=torch.get_num_threads(),
    )


def _peaks(layer: Layer, found: list[dict[str, Any]], focus: dict[str, Any]) -> Peaks | None:
    """Inputs and all that is allocated; above 256K it is not measured, and of full attention where it is one call."""
    whole = next((full["peak_extra_bytes"] for full in found if full["method"] == "full"), None)
    if whole is None or focus["peak_extra_bytes"] is None:
        return None
    return Peaks(layer.input_bytes + whole, layer.input_bytes + focus["peak_extra_bytes"])


def options_text(options: Layer | FocusConfig) -> str:
    """As setups state it."""
    rule = ", share" if options.match == "share" and options.top_k > 1 else ""
    return f"K = {options.num_groups}, k = {options.top_k}{rule}, window {options.window}"
