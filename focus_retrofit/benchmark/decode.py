"""Writing after a prompt: one token at a time through the cache, as `generate` does."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from focus_kernels import FocusError
from focus_kernels.bench.measure import clocked

from ..attention import Seen
from ..cache import FocusLayer
from ..discover import device_of
from ..latent import is_latent
from ..streaming import CHUNK, prefill
from .caches import growing_cache, held_bytes, in_place_cache, static_cache
from .facts import check_positions, mean_density, model_facts, position_limit
from .full import default_implementation, full_attention, no_attention, token_ways
from .gate import check_model, compare_logits, gate_length, ready
from .options import parse_lengths
from .prefill import attention_share, read
from .rows import FOCUS, FULL, Peaks, Row, make_row
from .text import sample_ids
from .timing import NOTHING, Note, fastest_full, in_rounds, rounds, steps

BURST = 8  # tokens that a way writes in its turn after a first one: as in use, one comes soon after the other
FILLED_BOTH = 16 * 1024  # tokens up to which a full cache is prefilled by full attention: beyond, that takes minutes


def bench_decode(
    model: PreTrainedModel,
    tokenizer: Any,
    lengths: str | Iterable[int],
    new_tokens: int = 32,
    *,
    repeats: int = 3,
    chunk: int = CHUNK,
    on_row: Callable[[Row], None] | None = None,
    progress: bool = True,
) -> list[Row]:
    """Seconds per token after prompts of real text, batch 1; `model` is retrofitted, and gated first.

    Both sides are given the text's own next tokens, so that they do the same work.
    """
    focus = ready(model)
    if focus.config.leaks:
        raise FocusError("balance='sinkhorn' looks at later tokens and cannot generate; use balance='potentials'")
    lengths = parse_lengths(lengths)
    check_positions(model, lengths[-1] + new_tokens)
    ids = sample_ids(tokenizer, max(lengths[-1] + new_tokens, gate_length(model))).to(device_of(model))
    rows = []
    with torch.inference_mode(), steps("decode", lengths, progress) as (todo, note):
        note("checking against the dense reference")
        check_model(model, ids[:, : min(gate_length(model), position_limit(model) or ids.shape[1])])
        for tokens in todo:
            rows.append(_row(model, ids[:, : tokens + new_tokens], new_tokens, repeats, chunk, note))
            if on_row is not None:
                on_row(rows[-1])
    return rows


def write(model: PreTrainedModel, ids: Tensor, cache: Any) -> Tensor:
    """ids [1, n] one by one after what the cache holds; the logits of the last."""
    logits = None
    for step in range(ids.shape[1]):
        logits = read(model, ids[:, step : step + 1], cache)
        int(logits[0, -1].argmax())  # on the host, as generate looks for the end of the text
    assert logits is not None
    return logits


@dataclass(frozen=True)
class Writer:
    """One way to write: a cache that holds the prompt, made anew for each round, and the attention at work."""

    make: Callable[[], Any]
    around: Callable[[], AbstractContextManager[object]] = nullcontext


def rewind(cache: Any, tokens: int) -> None:
    """Forget all but the first tokens, in each layer that holds more."""
    for layer in cache.layers:
        more = int(layer.get_seq_length()) - tokens
        if more > 0:
            layer.crop(-more)


def write_in_turn(model: PreTrainedModel, ids: Tensor, tokens: int, writers: dict[str, Writer]) -> dict[str, float]:
    """Seconds per token of ids [1, n], written after the prompt's `tokens`: each way writes a few before any writes
    more, so that a noisy neighbour hits them alike. The first of several is not timed: it finds in the processor's
    caches what another way left there. Ways may share a cache: what the last one wrote stays."""
    caches = {name: writer.make() for name, writer in writers.items()}
    spent, timed = dict.fromkeys(writers, 0.0), 0
    for step in range(0, ids.shape[1] - 1, BURST + 1):  # one alone would not be timed
        first, rest = ids[:, step : step + BURST + 1].tensor_split([1], 1)
        timed += rest.shape[1]
        for name, writer in writers.items():
            rewind(caches[name], tokens + step)
            gc.collect()
            with writer.around():
                write(model, first, caches[name])
                spent[name] += clocked(partial(write, model, rest, caches[name]))
    return {name: seconds / timed for name, seconds in spent.items()}


def _row(model: PreTrainedModel, ids: Tensor, new_tokens: int, repeats: int, chunk: int, note: Note) -> Row:
    focus: Any = model.focus
    tokens = ids.shape[1] - new_tokens
    prompt, coming = ids[:, :tokens], ids[:, tokens:]
    own = default_implementation(model)
    filled, cache = in_place_cache(model, ids.shape[1]), focus.new_cache()
    cache.activate_past_recording()
    note("prefilling the caches")
    taken = tokens > FILLED_BOTH and all(isinstance(layer, FocusLayer) for layer in cache.layers)
    taken = taken and not any(is_latent(module) for module in model.modules())
    with also_into(filled, focus) if taken else nullcontext():
        prefill(model, prompt, cache=cache, chunk=chunk, progress=False)
    if not taken:
        with full_attention(model, own):
            read(model, prompt, filled)
    for one in (filled, cache):  # layers with a window of their own let go of the rest of the prompt
        one.crop(0)
    memory = Peaks(held_bytes(filled), cache.memory())
    # without attention first: what it writes into the cache that they share is nonsense, and is written over
    writers = {NOTHING: Writer(lambda: filled, partial(full_attention, model, no_attention(model)))}
    writers |= _full_writers(model, coming, filled, note)
    writers[FOCUS] = Writer(lambda: cache)
    default = f"{FULL}{own}, growing cache"

    def in_turn(names: list[str], which: str) -> dict[str, float]:
        note(f"{len(names)} ways to write, in turn ({which})")
        found = write_in_turn(model, coming, tokens, {name: writers[name] for name in names})
        for one in (filled, cache):
            rewind(one, tokens)
        return found

    each = in_rounds(in_turn, list(writers), rounds(repeats, tokens), default)
    return make_row(
        "decode",
        tokens,
        each,
        default=default,
        density=mean_density(model, "decode_density"),
        attention_share=attention_share(each, fastest_full(each)),
        memory=memory,
        filled="a prefill with Focus" if taken else None,
        beyond_positions=ids.shape[1] > (position_limit(model) or ids.shape[1]),
        **model_facts(model),
    )


@contextmanager
def also_into(filled: DynamicCache, focus: Any) -> Iterator[None]:
    """What each layer of a prefill with Focus gets as keys and values goes into a full cache as well."""

    def copy(seen: Seen) -> None:
        layer: Any = filled.layers[seen.index]
        layer.update(seen.key, seen.value)

    before, focus.watch = focus.watch, copy
    try:
        yield
    finally:
        focus.watch = before


def _full_writers(model: PreTrainedModel, coming: Tensor, filled: DynamicCache, note: Note) -> dict[str, Writer]:
    """Those that give the logits of the model's own, on the first two tokens to come."""
    found, tokens = {}, filled.get_seq_length()
    want: Tensor | None = None
    for name, writer in _candidates(model, filled).items():
        note(f"checking {name}")
        try:
            cache = writer.make()
            with writer.around():
                logits = write(model, coming[:, :2], cache)
            want = logits if want is None else want
            compare_logits(logits, want, name)
            found[name] = writer
        except (FocusError, ValueError, RuntimeError, ImportError):
            if want is None:
                raise
            # not for this model
        finally:
            rewind(filled, tokens)
    return found


def _candidates(model: PreTrainedModel, filled: DynamicCache) -> dict[str, Writer]:
    """Every cache with the model's own attention, its default first; every attention with the strongest cache."""
    own = default_implementation(model)

    def writer(make: Callable[[], Any], implementation: str) -> Writer:
        return Writer(make, partial(full_attention, model, implementation))

    found = {f"{FULL}{own}, growing cache": writer(partial(growing_cache, model, filled), own)}
    for name, implementation in token_ways(model).items():
        found[f"{FULL}{name}, in place"] = writer(lambda: filled, implementation)
    if static_cache(model, filled) is not None:
        found[f"{FULL}{own}, static cache"] = writer(partial(static_cache, model, filled), own)
    return found
