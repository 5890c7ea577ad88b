"""Prompts read in chunks, full attention in samples, caches filled together: every number is of what it says."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from focus_retrofit import FocusError, prefill, retrofit
from focus_retrofit.benchmark import bench_decode, bench_prefill, sample_ids
from focus_retrofit.benchmark import decode as decode_module
from focus_retrofit.benchmark.caches import in_place_cache
from focus_retrofit.benchmark.full import chunk_ways, full_attention, no_attention
from focus_retrofit.benchmark.prefill import read, still_in_question
from focus_retrofit.benchmark.rows import FOCUS, FULL
from focus_retrofit.benchmark.sampled import SAMPLED
from focus_retrofit.benchmark.timing import NOTHING
from focus_retrofit.models import keep_first_layers
from tests.matrix import BY_NAME

from .conftest import CONFIG, small


def test_full_attention_in_chunks_is_full_attention(model: Any, tokenizer: Any) -> None:
    """Nothing but the kernel differs, and no mask of all pairs is made."""
    ids = sample_ids(tokenizer, 200)
    with model.focus.disabled(), torch.no_grad():
        want = model(ids).logits[:, -1:]
    with full_attention(model, chunk_ways(model)["in chunks"]):
        for cache in (in_place_cache(model, 200), DynamicCache(config=model.config)):
            found = prefill(model, ids, cache=cache, chunk=48, progress=False).logits
            torch.testing.assert_close(found, want, rtol=0, atol=1e-5)
    with full_attention(model, no_attention(model)):
        prefill(model, ids, cache=in_place_cache(model, 200), chunk=48, progress=False)


def test_long_rows(model: Any, tokenizer: Any) -> None:
    """Within a chunk, in chunks, and sampled; density is of all chunks."""
    options: dict[str, Any] = {"chunk": 128, "exact": 300, "repeats": 1, "progress": False}
    short, cut, sampled = bench_prefill(model, tokenizer, [96, 256, 600], **options)
    assert f"{FULL}in chunks" not in short["all"] and f"{FULL}in chunks" in cut["all"]
    assert set(sampled["all"]) == {FOCUS, NOTHING, FULL + SAMPLED} and sampled["full_method"] == SAMPLED
    assert "24 evenly spaced blocks" in sampled["sampled"] and cut["sampled"] is short["sampled"] is None
    assert sampled["full_seconds"] > min(sampled["all"][NOTHING]) and sampled["chunk"] == 128
    with torch.inference_mode():
        model(sample_ids(tokenizer, 600), use_cache=False)
    layers = model.focus.report().layers
    assert sampled["density"] == pytest.approx(sum(layer.density for layer in layers) / len(layers))


def test_below_min_length_a_token_reads_every_key(tokenizer: Any) -> None:
    dense = retrofit(BY_NAME["Llama"].make(dtype=torch.float32), replace(CONFIG, min_length=512))
    (row,) = bench_decode(dense, tokenizer, [64], new_tokens=2, repeats=1, progress=False)
    assert row["density"] == row["bound"] == 1


def test_what_a_model_cannot_run_is_left_out(tokenizer: Any) -> None:
    """A softcap is unknown to these kernels: the model's own attention stays, and memory is of what reads in chunks."""
    (row,) = bench_prefill(small("Gemma2"), tokenizer, [96], chunk=48, repeats=1, progress=False)
    assert f"{FULL}in chunks" not in row["all"] and row["chunk"] == 48 and row["memory"] > 0


def test_who_lost_is_not_timed_at_longer_lengths() -> None:
    times = {f"{FULL}a": [1.0, 3.0], f"{FULL}b": [1.1], f"{FULL}c": [2.0], FOCUS: [9.0]}
    ways = {name: name for name in "abcd"}  # d had no turn yet
    assert list(still_in_question(ways, {"tokens": 64, "full_seconds": 1.0, "all": times})) == ["a", "b", "d"]
    assert list(still_in_question(ways, {"tokens": 16384, "full_seconds": 1.0, "all": times})) == ["a", "d"]


def test_a_full_cache_is_filled_along(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where full attention would take minutes to prefill: both caches then hold the same keys."""
    ids = sample_ids(tokenizer, 150)
    filled, cache = in_place_cache(model, 150), model.focus.new_cache()
    with decode_module.also_into(filled, model.focus):
        prefill(model, ids, cache=cache, chunk=64, progress=False)
    assert model.focus.watch is None and filled.get_seq_length() == 150
    buckets = cache.layers[0].buckets
    sinks, recent = buckets.pool.spans[(0,)], buckets.rows[0]
    keys = filled.layers[0].filled()[0][0]
    assert torch.equal(keys[:, :2], buckets.pool.key[:, sinks.start : sinks.start + sinks.used])
    assert torch.equal(keys[:, recent.first :], buckets.recent_key[0][:, recent.start : recent.start + recent.count])
    monkeypatch.setattr(decode_module, "FILLED_BOTH", 100)
    plain, along = bench_decode(model, tokenizer, [64, 150], 2, repeats=1, progress=False)
    assert plain["filled"] is None and along["filled"] == "a prefill with Focus"
    (gemma,) = bench_decode(small("Gemma3"), tokenizer, [150], 2, repeats=1, progress=False)
    assert gemma["filled"] is None  # its own windows are no layers of Focus


@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
def test_ways_that_write_in_turn_all_go_on_after_their_own_tokens(family: str, tokenizer: Any) -> None:
    """Also where they share a cache, or layers of one: at the end each has written what it would have by itself."""
    model = small(family)
    ids = sample_ids(tokenizer, 60)
    filled = in_place_cache(model, 60)
    with torch.inference_mode(), full_attention(model, "sdpa"):
        want = read(model, ids, DynamicCache(config=model.config))
        read(model, ids[:, :50], filled)
        filled.crop(0)
    writers, noted = decode_module._candidates(model, filled), {}
    nothing = decode_module.Writer(lambda: filled, lambda: full_attention(model, no_attention(model)))

    def keep(name: str, writer: Any) -> Any:
        def make() -> Any:
            noted[name] = writer.make()
            return noted[name]

        return decode_module.Writer(make, writer.around)

    with torch.inference_mode():
        kept = {name: keep(name, writer) for name, writer in {"nothing": nothing, **writers}.items()}
        spent = decode_module.write_in_turn(model, ids[:, 50:59], 50, kept)
        assert set(spent) == set(kept) and min(spent.values()) > 0
        for name, writer in writers.items():
            decode_module.rewind(noted[name], 59)
            with writer.around():
                found = decode_module.write(model, ids[:, 59:], noted[name])
            torch.testing.assert_close(found, want, rtol=0, atol=1e-5, msg=name)


def test_writers_take_turns_and_the_first_token_of_each_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen = [0.0], []

    def write(model: Any, ids: torch.Tensor, cache: Any) -> None:
        seen.append((cache.name, ids[0].tolist()))
        now[0] += 1000 if ids[0, 0] % 3 == 0 else ids.shape[1] * cache.seconds

    def clocked(action: Any) -> float:
        before = now[0]
        action()
        return now[0] - before

    monkeypatch.setattr(decode_module, "BURST", 2)
    monkeypatch.setattr(decode_module, "write", write)
    monkeypatch.setattr(decode_module, "clocked", clocked)
    caches = [SimpleNamespace(name=name, seconds=seconds, layers=[]) for name, seconds in (("a", 1.0), ("b", 5.0))]
    writers = {cache.name: decode_module.Writer(lambda cache=cache: cache) for cache in caches}
    turns = [([0], [1, 2]), ([3], [4, 5]), ([6], [7, 8])]
    for count, wanted in ((8, [*turns[:2], ([6], [7])]), (9, turns), (10, turns)):
        seen.clear()
        spent = decode_module.write_in_turn(None, torch.arange(count)[None], 0, writers)  # type: ignore[arg-type]
        assert seen == [(name, ids) for turn in wanted for name in "ab" for ids in turn]
        assert spent == {"a": 1.0, "b": 5.0}


@pytest.mark.parametrize("name", ["Llama", "Gemma3", "GPT2"])
def test_a_model_of_its_first_layers(name: str) -> None:
    model = BY_NAME[name].make(dtype=torch.float32)
    ids = torch.arange(2, 40)[None]
    with torch.no_grad():
        hidden = model(ids, output_hidden_states=True).hidden_states[1]
        keep_first_layers(model, 1)
        assert model.config.num_hidden_layers == 1
        # the last of hidden_states is after the final norm
        kept = model(ids, output_hidden_states=True).hidden_states
    assert len(kept) == 2 and hidden.shape == kept[1].shape
    with pytest.raises(FocusError, match="has 1 layers; 7 of them"):
        keep_first_layers(model, 7)
    if name == "Llama":
        assert retrofit(model, CONFIG).focus.layer_indices == [0]
