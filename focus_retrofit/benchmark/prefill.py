"""Reading a prompt: a whole forward pass of the model, up to the logits of the next token."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from focus_kernels import FocusError

from ..discover import device_of
from .facts import check_positions, mean_density, model_facts, position_limit
from .full import default_implementation, full_attention, no_attention, whole_ways
from .gate import check_model, compare_logits, gate_length, ready
from .options import parse_lengths
from .rows import FOCUS, FULL, Row, make_row
from .text import sample_ids
from .timing import Note, Way, fastest_full, in_turn, memory_peaks, rounds, steps

NOTHING = "no attention"


def bench_prefill(
    model: PreTrainedModel,
    tokenizer: Any,
    lengths: str | Iterable[int],
    *,
    repeats: int = 3,
    memory: bool = True,
    on_row: Callable[[Row], None] | None = None,
    progress: bool = True,
) -> list[Row]:
    """Seconds to read prompts of real text with a cache, batch 1; `model` is retrofitted, and gated first."""
    ready(model)
    lengths = parse_lengths(lengths)
    check_positions(model, lengths[-1])
    ids = sample_ids(tokenizer, max(lengths[-1], gate_length(model))).to(device_of(model))
    rows = []
    with torch.inference_mode(), steps("prefill", lengths, progress) as (todo, note):
        note("checking against the dense reference")
        sample = ids[:, : min(gate_length(model), position_limit(model) or ids.shape[1])]
        check_model(model, sample, decode=False)
        fulls = agreeing(model, sample, note)
        for tokens in todo:
            rows.append(_row(model, ids[:, :tokens], fulls, repeats, memory, note))
            if on_row is not None:
                on_row(rows[-1])
    return rows


def agreeing(model: PreTrainedModel, ids: Tensor, note: Note, ways: dict[str, str] | None = None) -> dict[str, str]:
    """The ways of full attention that this model can run and that give the logits of its own."""
    own = default_implementation(model)
    with full_attention(model, own):
        want = read(model, ids, DynamicCache(config=model.config))
    found = {}
    for name, implementation in (ways or whole_ways(model)).items():
        note(f"checking full attention by {name}")
        try:
            with full_attention(model, implementation):
                compare_logits(read(model, ids, DynamicCache(config=model.config)), want, name)
        except (FocusError, ValueError, RuntimeError, ImportError):
            continue  # not for this model
        found[name] = implementation
    return found


def read(model: PreTrainedModel, ids: Tensor, cache: Any) -> Tensor:
    """Logits after ids [1, T], which go into an empty cache."""
    return model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits


def _row(model: PreTrainedModel, ids: Tensor, fulls: dict[str, str], repeats: int, memory: bool, note: Note) -> Row:
    focus: Any = model.focus

    def fully() -> Tensor:
        return read(model, ids, DynamicCache(config=model.config))

    def sparsely() -> Tensor:
        return read(model, ids, focus.new_cache())

    ways = {FULL + name: Way(fully, partial(full_attention, model, way)) for name, way in fulls.items()}
    ways[FOCUS] = Way(sparsely)
    ways[NOTHING] = Way(fully, partial(full_attention, model, no_attention(model)))
    own = FULL + default_implementation(model)
    times = in_turn(ways, rounds(repeats, ids.shape[1]), note, always=own)
    strongest = fastest_full(times)
    return make_row(
        "prefill",
        ids.shape[1],
        times,
        default=own,
        density=mean_density(model),
        attention_share=attention_share(times, strongest),
        memory=memory_peaks(ways, strongest, note) if memory else None,
        beyond_positions=ids.shape[1] > (position_limit(model) or ids.shape[1]),
        **model_facts(model),
    )


def attention_share(times: dict[str, list[float]], full: str) -> float:
    """What a model without attention saves, of the time with it."""
    return max(0.0, 1 - min(times[NOTHING]) / min(times[full]))
