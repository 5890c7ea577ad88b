"""A prompt read in chunks: what comes out is what the whole prompt in one call gives, whatever holds the keys."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_retrofit import FocusCache, FocusConfig, FocusError, prefill, retrofit
from focus_retrofit.streaming import remaining
from tests.matrix import BY_NAME, VOCABULARY

from .oracle import logits_of

IDS = torch.randint(2, VOCABULARY, (2, 120), generator=torch.Generator().manual_seed(5))


def make(name="Llama", **options):
    return retrofit(BY_NAME[name].make(), FocusConfig(**{"num_groups": 4, "top_k": 2, "window": 8, **options}))


def close(found, wanted, atol=1e-9):
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


MODELS = {min_length: make(min_length=min_length) for min_length in (0, 30)}


@settings(deadline=None, max_examples=12)
@given(
    chunk=st.sampled_from([1, 7, 33, 64, 130]),
    keep=st.integers(1, 120),
    first=st.integers(0, 60),
    min_length=st.sampled_from([0, 30]),
    padded=st.booleans(),
)
def test_chunks_are_the_whole(chunk, keep, first, min_length, padded):
    model, mask, options = MODELS[min_length], None, {}
    if padded:
        mask = torch.ones_like(IDS)
        mask[0, :17] = mask[1, 40:45] = 0
        options = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp_min(0)}
    cache, keep = FocusCache(model), min(keep, 120 - first)
    if first:
        prefill(model, IDS[:, :first], cache=cache, chunk=chunk, progress=False,
                attention_mask=None if mask is None else mask[:, :first])  # fmt: skip
    found = prefill(model, IDS[:, first:], cache=cache, chunk=chunk, keep=keep, attention_mask=mask, progress=False)
    wanted = logits_of(model, IDS, **options)[:, -keep:]
    real = torch.ones(2, keep, dtype=torch.bool) if mask is None else mask[:, -keep:].bool()
    close(found.logits[real], wanted[real])
    assert found.cache is cache and cache.get_seq_length() == 120 and found.tokens == 120 - first


@pytest.mark.parametrize("name", ["GPT2", "Gemma2", "GptOss", "DeepseekV3", "Mixtral"])
def test_families(name):
    model = make(name, min_length=20)
    whole = prefill(model, IDS, chunk=200, keep=50, progress=False).logits
    parts = prefill(model, IDS, chunk=33, keep=50, progress=False).logits
    close(parts, whole, 1e-5 if name in ("DeepseekV3", "GptOss", "Mixtral") else 1e-9)


def test_generate_goes_on():
    model = make()
    cache = prefill(model, IDS[:1, :-1], chunk=32, progress=False).cache
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    went_on = model.generate(IDS[:1], past_key_values=cache, **options)
    assert torch.equal(went_on, model.generate(IDS[:1], **options))
    assert torch.equal(went_on, model.generate(IDS[:1], prefill_chunk_size=32, **options))  # transformers' own chunks


def test_a_base_model_is_read_too():
    model = BY_NAME["Llama"].make()
    wanted = model(IDS).logits.detach()
    close(prefill(model, IDS, chunk=50, keep=120, progress=False).logits, wanted)
    retrofit(model, FocusConfig(num_groups=4, top_k=1, window=8))
    with model.focus.disabled():
        close(prefill(model, IDS, chunk=50, keep=120, progress=False).logits, wanted)
    assert not torch.allclose(prefill(model, IDS, chunk=50, keep=120, progress=False).logits, wanted)


@pytest.mark.parametrize("padded", [False, True])
def test_early_tokens_are_the_same_on_every_backend(padded):
    """Some have no streaming form: they compute early tokens' rows twice, and choose."""
    model, options = MODELS[30], {}
    if padded:
        mask = torch.ones_like(IDS)
        mask[0, :17] = 0
        options = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp_min(0)}
    found = {}
    try:
        for model.focus.backend in ("auto", "eager", "cpu:chunked", "reference"):
            with torch.no_grad():
                found[model.focus.backend] = model(IDS, use_cache=False, **options).logits[:, 17:]
    finally:
        model.focus.backend = "auto"
    wanted = logits_of(model, IDS, **options)[:, 17:]
    for logits in found.values():
        close(logits, wanted)


@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_what_holds_the_keys(dtype, spilled, tmp_path):
    """Rounded once as they come in: chunks, whole prompts and single tokens see the same keys. In float64, so that no
    two ways come to different sides of a rounding."""
    model = make("GPT2")
    found = []
    for chunk in (200, 31, 3):
        cache = FocusCache(model, dtype=dtype, spill=tmp_path if spilled else None)
        read = prefill(model, IDS[:, :110], cache=cache, chunk=chunk, keep=40, progress=False)
        after = prefill(model, IDS[:, 110:], cache=cache, chunk=1, keep=10, progress=False)
        found.append(torch.cat([read.logits, after.logits], 1))
        assert os.listdir(tmp_path) == []  # no name that anybody could trip over
        cache.crop(-70)
        again = prefill(model, IDS[:, 50:], cache=cache, chunk=chunk, keep=50, progress=False)
        close(again.logits, found[-1])
    for other in found[1:]:
        close(other, found[0])
    wanted = logits_of(model, IDS)[:, 70:]
    error = float((found[0] - wanted).abs().max())
    assert error < 1e-9 if dtype is None else 1e-6 < error < 0.1 * float(wanted.std())
    held = [layer.buckets.pool.data.dtype for layer in cache.layers]
    assert set(held) == {dtype or torch.float64}


def test_a_half_sized_cache_takes_half_the_memory():
    model = make(window=4).float()
    sizes = []
    for dtype in (None, torch.bfloat16):
        cache = FocusCache(model, dtype=dtype)
        prefill(model, IDS.repeat(1, 20), cache=cache, chunk=480, progress=False)
        sizes.append(sum(layer.buckets.pool.memory() for layer in cache.layers))
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.05)  # rounded keys, so not quite the same groups


def test_a_chunk_leaves_no_room_behind():
    """What is held after a prefill in chunks is what one call would leave: a chunk is not held twice."""
    model, ids = make(), IDS[:1].repeat(1, 10)
    sizes = [prefill(model, ids, chunk=chunk, progress=False).cache.memory() for chunk in (1200, 600, 300)]
    assert max(sizes) < 1.1 * min(sizes)


def test_room_that_is_expected_is_made_once(monkeypatch):
    from focus_kernels.pool import Pool

    model, moves, real = make(), [], Pool.rebuild
    monkeypatch.setattr(Pool, "rebuild", lambda *args, **kwargs: moves.append(1) or real(*args, **kwargs))
    ids = IDS[:1].repeat(1, 40)
    prefill(model, ids, chunk=300, progress=False)
    often = len(moves)
    cache = FocusCache(model)
    cache.expect = lambda tokens: None
    moves.clear()
    prefill(model, ids, cache=cache, chunk=300, progress=False)
    assert often <= 3 * len(cache.layers) < len(moves)


def test_a_full_disk_is_said(tmp_path):
    model = make()
    with pytest.raises(FocusError, match="give a directory to write to"):
        prefill(model, IDS, cache=FocusCache(model, spill=tmp_path / "nowhere"), progress=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunk": 0}, "chunk is 0"),
        ({"keep": 121}, "keep is 121"),
        ({"attention_mask": torch.ones(2, 7)}, r"\[2, 7\]; give \[2, 120\]"),
        ({"input_ids": IDS[0]}, r"shape \[120\]"),
    ],
)
def test_mistakes(change, message):
    with pytest.raises(FocusError, match=message):
        prefill(MODELS[0], **{"input_ids": IDS, **change})


@given(a=st.floats(0, 1), b=st.floats(0, 1e-3), first=st.integers(0, 1000), steps=st.integers(2, 9))
def test_estimates(a, b, first, steps):
    """A time that grows as it should is foretold exactly."""
    ends = [first + 100 * n for n in range(steps + 1)]
    spent = [a * (n - first) + b * (n - first) ** 2 for n in ends]
    last = ends[-1] + 1234
    wanted = a * (last - first) + b * (last - first) ** 2 - spent[-1]
    assert remaining(ends, spent, last) == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    assert remaining(ends[:1], spent[:1], last) is None
