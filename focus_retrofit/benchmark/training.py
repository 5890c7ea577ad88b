"""One attention layer in a training step: forward and backward of what the objectives run, against full attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from focus_kernels import FocusError
from focus_kernels.bench.gate import Red, check

from ..config import FocusConfig
from .kernel import options_text
from .options import parse_lengths
from .rows import FOCUS, FULL, Peaks, Row, make_row
from .timing import Note, Way, in_turn, peak_of, rounds, steps
from .training_gate import check_training
from .training_steps import FULL_STEP, Routed, Step, steps_of

SOFT_LONGEST = 4096  # the soft gate's pairs are written out
FULL_WAY = FULL + "sdpa"


def bench_training(
    lengths: str | Iterable[int],
    focus: FocusConfig,
    heads: tuple[int, int] = (9, 3),
    head_size: int = 64,
    dtype: torch.dtype = torch.float32,
    *,
    device: str = "cpu",
    repeats: int = 3,
    memory: bool = True,
    soft: bool = True,
    on_row: Callable[[Row], None] | None = None,
    progress: bool = True,
) -> list[Row]:
    """Seconds of forward and backward with random tensors and random, even groups: a row for each objective and length.

    lm-hard with gradients for the pairs of `focus.explore` groups, or else of k and of all; the soft gate up to 4K.
    Gradients reach queries, keys, values and scores. A wrong output or gradient raises FocusError.
    """
    sizes: dict[str, Any] = {name: getattr(focus, name) for name in ("num_groups", "top_k", "window", "sinks", "match")}
    shape: dict[str, Any] = {"q_heads": heads[0], "kv_heads": heads[1], "size": head_size}
    base = Routed(0, **sizes, **shape, dtype=dtype, device=device)
    rows = []
    with torch.enable_grad(), steps("training", parse_lengths(lengths), progress) as (todo, note):
        note("checking gradients against the dense reference")
        own = steps_of(focus, soft)
        check_training(base, own, focus)
        for tokens in todo:
            for row in _rows(replace(base, tokens=tokens), own, repeats, memory, note):
                rows.append(row)
                if on_row is not None:
                    on_row(row)
    return rows


def _rows(layer: Routed, all_steps: list[Step], repeats: int, memory: bool, note: Note) -> list[Row]:
    own = [step for step in all_steps if step.explore or layer.tokens <= SOFT_LONGEST]
    _check_outputs(layer, own, note)
    ways = {FULL_WAY: Way(partial(FULL_STEP.run, layer)), **{step.name: Way(partial(step.run, layer)) for step in own}}
    times = in_turn(ways, rounds(repeats, layer.tokens), note)
    bytes_ = {name: peak_of(ways, name, note) for name in ways} if memory else {}
    shape = f"one layer, {layer.q_heads}/{layer.kv_heads} heads of {layer.size}, {options_text(layer)}"
    return [
        make_row(
            "training",
            layer.tokens,
            {FULL_WAY: times[FULL_WAY], FOCUS: times[step.name]},
            default=FULL_WAY,
            density=layer.visible / layer.full_pairs if step.explore else 1.0,
            attention_share=1.0,
            work=step.work(layer),
            memory=Peaks(bytes_[FULL_WAY], bytes_[step.name]) if memory else None,
            setup=f"{shape}, {step.name}",
            dtype=str(layer.dtype).removeprefix("torch."),
            device=layer.device,
            threads=torch.get_num_threads(),
        )
        for step in own
    ]


def _check_outputs(layer: Routed, own: list[Step], note: Note) -> None:
    """Rows of each output at this very length; of gradients, the gate was asked before."""
    with torch.no_grad():
        for step in own:
            if step.explore:
                note(f"checking {step.name}")
                try:
                    check(layer, step.attend(layer, *layer.tensors, layer.scores), step.name)
                except Red as red:
                    raise FocusError(f"no speed is reported: {red}") from None
