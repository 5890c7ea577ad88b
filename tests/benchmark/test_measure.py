"""Rows say what they must, both sides are run in turn, and the model is afterwards as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from focus_retrofit import FocusConfig, FocusError
from focus_retrofit.benchmark import bench_decode, bench_kernel, bench_prefill, sample_ids
from focus_retrofit.benchmark import timing as timing_module
from focus_retrofit.benchmark.rows import FIELDS, FOCUS, FULL
from focus_retrofit.benchmark.timing import Way, in_turn
from tests.matrix import FAMILIES, Family

from .conftest import small


def test_rows_have_the_schema(rows: list[dict[str, Any]]) -> None:
    assert [(row["part"], row["tokens"]) for row in rows] == [
        (part, tokens) for part in ("kernel", "prefill", "decode") for tokens in (64, 600)
    ]
    for row in rows:
        assert list(row) == list(FIELDS)
        best = {name: min(seconds) for name, seconds in row["all"].items()}
        full = {name.removeprefix(FULL): seconds for name, seconds in best.items() if name.startswith(FULL)}
        assert row["full_seconds"] == min(full.values()) == full[row["full_method"]]
        assert row["focus_seconds"] == best[FOCUS]
        assert row["speedup"] == pytest.approx(row["full_seconds"] / row["focus_seconds"])
        assert row["repeats"] == len(row["all"][FOCUS])
        assert 0 < row["density"] <= 1 and 0 <= row["attention_share"] <= 1
        assert row["bound"] == pytest.approx(1 / (1 - row["attention_share"] * (1 - row["density"])))
        assert row["memory"] == pytest.approx(row["focus_bytes"] / row["full_bytes"]) and row["sampled"] is None
        assert row["full_bytes"] > 0 and row["threads"] == torch.get_num_threads() and row["dtype"] == "float32"
        assert "K = 4, k = 1, window 8" in row["setup"]
    assert [row["beyond_positions"] for row in rows] == [False, False, False, True, False, True]


def test_density_is_what_the_model_computed(rows: list[dict[str, Any]], tokenizer: Any) -> None:
    """Of a prefill, pairs; of decoding, keys."""
    (row,) = (row for row in rows if row["part"] == "prefill" and row["tokens"] == 600)
    model = small()
    with torch.inference_mode():
        model(sample_ids(tokenizer, 600), use_cache=False)
    layers = model.focus.report().layers
    assert row["density"] == pytest.approx(sum(layer.density for layer in layers) / len(layers))
    assert row["density"] < 0.8
    assert all(row["density"] < 0.8 for row in rows if row["tokens"] == 600)


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.name in ("GPT2", "Gemma3", "GptOss", "DeepseekV3")], ids=str
)
def test_families(family: Family, tokenizer: Any) -> None:
    """Learned positions, windows of their own, learned sinks without SDPA, latents: each is measured against itself."""
    model = small(family.name)
    (prefill,) = bench_prefill(model, tokenizer, [96], repeats=1, memory=False, progress=False)
    (decode,) = bench_decode(model, tokenizer, [96], 2, repeats=1, progress=False)
    own = "eager" if family.name == "GptOss" else "sdpa"
    assert f"{FULL}{own}" in prefill["all"] and prefill["memory"] is None
    assert {f"{FULL}{own}, growing cache", f"{FULL}{own}, in place"} <= set(decode["all"])
    assert (f"{FULL}balanced" in prefill["all"]) == (family.name in ("GPT2", "Gemma3"))


def test_full_attention_has_no_mask(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline is SDPA's causal kernel: with a written mask it would be slower, and Focus would look better."""
    calls = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def watched(*args: Any, attn_mask: Any = None, is_causal: bool = False, **kwargs: Any) -> Any:
        calls.append((attn_mask is None, is_causal))
        return plain(*args, attn_mask=attn_mask, is_causal=is_causal, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    bench_prefill(model, tokenizer, [64], repeats=1, memory=False, progress=False)
    assert calls and set(calls) == {(True, True)}


def test_the_model_is_left_as_it_was(model: Any, tokenizer: Any) -> None:
    ids = sample_ids(tokenizer, 64)
    with torch.no_grad():
        before = model(ids, use_cache=False).logits
        bench_prefill(model, tokenizer, [64], repeats=1, progress=False)
        bench_decode(model, tokenizer, [64], 2, repeats=1, progress=False)
        assert torch.equal(model(ids, use_cache=False).logits, before)
    assert model.focus.enabled and model.focus.watch is None and model.focus.backend == "auto"


def test_ways_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in each round; a full attention that was hopeless twice no more, but the default always."""
    order: list[str] = []
    seconds = {f"{FULL}a": 1.0, f"{FULL}b": 2.0, f"{FULL}default": 3.0, FOCUS: 9.0}

    def timed(run: Any) -> float:
        run()
        return seconds[order[-1]]

    monkeypatch.setattr(timing_module, "seconds_of", timed)
    ways = {name: Way(lambda name=name: order.append(name)) for name in seconds}
    times = in_turn(ways, 3, lambda text: None, always=f"{FULL}default")
    assert order == [*seconds, *seconds, f"{FULL}a", f"{FULL}default", FOCUS]
    assert {name: len(found) for name, found in times.items()} == dict(zip(seconds, (3, 2, 3, 3), strict=True))


def test_of_many_alike_few_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest has been looked at about as often as Focus, not nine of them as often each."""
    seconds = {**{f"{FULL}{n}": 1 + n / 100 for n in range(9)}, FOCUS: 1.0}
    monkeypatch.setattr(timing_module, "seconds_of", lambda run: run())
    times = in_turn({name: Way(lambda name=name: seconds[name]) for name in seconds}, 8, lambda text: None)
    assert [len(times[name]) for name in seconds] == [8, 8, 6, 4, 4, 2, 2, 2, 2, 8]


def test_rows_come_as_they_are_made(tokenizer: Any) -> None:
    """An interrupt keeps what is done."""
    kept: list[Any] = []

    def interrupt(row: Any) -> None:
        kept.append(row)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench_kernel([64, 128], FocusConfig(window=8), (2, 1), 16, repeats=1, on_row=interrupt, progress=False)
    model = small()
    with pytest.raises(KeyboardInterrupt):
        bench_prefill(model, tokenizer, [64, 96], repeats=1, memory=False, on_row=interrupt, progress=False)
    assert [(row["part"], row["tokens"]) for row in kept] == [("kernel", 64), ("prefill", 64)]
    assert model.focus.enabled


def test_a_table_of_positions_ends(tokenizer: Any) -> None:
    with pytest.raises(FocusError, match="table of 512 positions; 600 tokens do not fit"):
        bench_prefill(small("GPT2"), tokenizer, [600], progress=False)


def test_text_is_repeated_where_it_ends(tokenizer: Any) -> None:
    assert torch.equal(sample_ids(tokenizer, 1000)[:, :500], sample_ids(tokenizer, 500))
    ids = sample_ids(lambda text: tokenizer(text[:7]), 20)
    assert ids.shape == (1, 20) and torch.equal(ids[:, 7:14], ids[:, :7])
