"""Reading a prompt: a whole forward pass of the model, up to the logits of the next token."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from focus_kernels import FocusError

from ..discover import device_of
from ..stats import count_pairs
from ..streaming import CHUNK, prefill
from .caches import in_place_cache
from .facts import check_positions, model_facts, position_limit
from .full import chunk_ways, default_implementation, full_attention, no_attention, whole_ways
from .gate import check_model, compare_logits, gate_length, ready
from .options import parse_lengths
from .rows import FOCUS, FULL, Row, make_row
from .sampled import HOW, read_in_turn
from .text import sample_ids
from .timing import NOTHING, Note, Way, fastest_full, in_turn, memory_peaks, rounds, steps

EXACT = 32 * 1024
QUESTIONABLE = 1.15  # times the fastest full attention: who was slower is not timed at longer lengths
LONG = 8192  # tokens from which on only the fastest at the length before is timed: each takes minutes


@dataclass(frozen=True)
class Reading:
    """How prompts are read, and what is measured."""

    repeats: int
    memory: bool
    chunk: int
    exact: int


def bench_prefill(
    model: PreTrainedModel,
    tokenizer: Any,
    lengths: str | Iterable[int],
    *,
    repeats: int = 3,
    memory: bool = True,
    chunk: int = CHUNK,
    exact: int = EXACT,
    on_row: Callable[[Row], None] | None = None,
    progress: bool = True,
) -> list[Row]:
    """Seconds to read prompts of real text with a cache, batch 1; `model` is retrofitted, and gated first.

    Longer prompts than `chunk` are read in chunks. Beyond `exact` tokens each side is timed once and, on a CPU, full
    attention in samples, which the row says.
    """
    ready(model)
    options = Reading(repeats, memory, chunk, exact)
    lengths = parse_lengths(lengths)
    check_positions(model, lengths[-1])
    ids = sample_ids(tokenizer, max(lengths[-1], gate_length(model))).to(device_of(model))
    rows = []
    with torch.inference_mode(), steps("prefill", lengths, progress) as (todo, note):
        note("checking against the dense reference")
        sample = ids[:, : min(gate_length(model), position_limit(model) or ids.shape[1])]
        check_model(model, sample, decode=False)
        fulls, chunked = agreeing(model, sample, note), agreeing(model, sample, note, chunk_ways(model))
        for tokens in todo:
            rows.append(_row(model, ids[:, :tokens], fulls, chunked, options, note))
            if on_row is not None:
                on_row(rows[-1])
            fulls, chunked = (still_in_question(ways, rows[-1]) for ways in (fulls, chunked))
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


def still_in_question(fulls: dict[str, str], row: Row) -> dict[str, str]:
    """Of the ways to run full attention those that may be the fastest at the next length too."""
    best = {name: min(row["all"][FULL + name]) for name in fulls if row["all"].get(FULL + name)}
    limit = (1.0 if row["tokens"] >= LONG else QUESTIONABLE) * row["full_seconds"]
    return {name: way for name, way in fulls.items() if best.get(name, 0.0) <= limit}


def read(model: PreTrainedModel, ids: Tensor, cache: Any) -> Tensor:
    """Logits after ids [1, T], which go into an empty cache."""
    return model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits


def _row(
    model: PreTrainedModel, ids: Tensor, fulls: dict[str, str], chunked: dict[str, str], options: Reading, note: Note
) -> Row:
    tokens, own = ids.shape[1], FULL + default_implementation(model)
    cut = tokens > options.chunk
    sampled = cut and tokens > options.exact and device_of(model).type == "cpu"
    caches: list[Any] = []

    def sparsely() -> None:
        caches[:] = [prefill(model, ids, chunk=options.chunk, progress=False).cache]

    def wholly() -> None:
        read(model, ids, DynamicCache(config=model.config))

    def in_chunks() -> None:
        prefill(model, ids, cache=in_place_cache(model, tokens), chunk=options.chunk, progress=False)

    ways: dict[str, Way] = {}
    for name, implementation in {} if sampled else fulls.items():
        ways[FULL + name] = Way(wholly, partial(full_attention, model, implementation))
    for name, implementation in chunked.items() if cut and not sampled else ():
        ways[FULL + name] = Way(in_chunks, partial(full_attention, model, implementation))
    ways[FOCUS] = Way(sparsely)
    nothing = partial(full_attention, model, no_attention(model))
    ways[NOTHING] = Way(in_chunks if cut else wholly, nothing)
    if sampled:
        times, filled = read_in_turn(model, ids, options.chunk, note)
        caches[:] = [filled]
    else:
        times = in_turn(ways, 1 if tokens > options.exact else rounds(options.repeats, tokens), note, always=own)
    strongest = fastest_full(times)
    memory = None
    if options.memory:
        # of what reads in the same chunks; without attention it holds no more than with it
        same = next((name for name in (FULL + "in chunks", NOTHING) if cut and name in ways), strongest)
        memory = memory_peaks(ways, same, note)
    return make_row(
        "prefill",
        tokens,
        times,
        default=own,
        density=density_of(model, caches[0]),
        attention_share=attention_share(times, strongest),
        memory=memory,
        sampled=HOW if sampled else None,
        chunk=options.chunk,
        beyond_positions=tokens > (position_limit(model) or tokens),
        **model_facts(model),
    )


def density_of(model: PreTrainedModel, cache: Any) -> float:
    """Share of causal pairs computed, mean over layers, from the groups that a cache holds."""
    focus: Any = model.focus
    shares = []
    for index in focus.layer_indices:
        layer = cache.layers[index]
        groups = layer.buckets.groups[0, : layer.length].long()
        seen, there = count_pairs(groups, focus.config, focus.dense_below)
        shares.append(seen / there)
    return fmean(shares)


def attention_share(times: dict[str, list[float]], full: str) -> float:
    """What a model without attention saves, of the time with it."""
    return max(0.0, 1 - min(times[NOTHING]) / min(times[full]))
