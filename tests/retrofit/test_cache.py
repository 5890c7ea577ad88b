"""The cache: however it is filled, cut, copied and shuffled, decoding goes on as if the sequence had always been so."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from focus_kernels import KeyBuckets
from focus_retrofit import FocusCache, FocusConfig, FocusError, retrofit
from focus_retrofit.cache import FocusLayer
from tests.matrix import BY_NAME, VOCABULARY

from .oracle import logits_of

LLAMA = BY_NAME["Llama"]
IDS = torch.randint(2, VOCABULARY, (3, 90), generator=torch.Generator().manual_seed(2))


def make(name="Llama", **options):
    return retrofit(BY_NAME[name].make(), FocusConfig(**{"num_groups": 4, "top_k": 2, "window": 8, **options}))


MODEL = make()


def feed(model, cache, ids, **kwargs):
    with torch.no_grad():
        return model(ids, past_key_values=cache, **kwargs).logits


def close(found, wanted, atol=1e-9):
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


@settings(deadline=None, max_examples=25)
@given(
    cuts=st.lists(st.integers(1, 89), max_size=6, unique=True).map(sorted),
    match=st.sampled_from(["probe", "share"]),
    sinks=st.sampled_from([0, 4]),
    min_length=st.sampled_from([0, 5, 40]),
)
def test_any_chunks_give_the_same(cuts, match, sinks, min_length):
    model = make(match=match, sinks=sinks, min_length=min_length)
    cache, ends = FocusCache(model), [*cuts, 90]
    found = [feed(model, cache, IDS[:, a:b]) for a, b in zip([0, *cuts], ends, strict=True)]
    close(torch.cat(found, 1), logits_of(model, IDS))


@settings(deadline=None, max_examples=25)
@given(first=st.integers(2, 60), removed=st.integers(1, 60), then=st.integers(1, 20))
def test_crop(first, removed, then):
    removed = min(removed, first - 1)
    cache = FocusCache(MODEL)
    feed(MODEL, cache, IDS[:, :first])
    cache.crop(-removed)
    assert cache.get_seq_length() == first - removed
    other = torch.cat([IDS[:, : first - removed], IDS[:, 60 : 60 + then]], 1)
    found = [feed(MODEL, cache, token) for token in other[:, first - removed :].split(1, 1)]
    close(torch.cat(found, 1), logits_of(MODEL, other)[:, first - removed :])


@pytest.mark.parametrize("name", ["Llama", "DeepseekV3", "Gemma3"])
@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda cache: cache.reorder_cache(torch.tensor([2, 0, 0])), [2, 0, 0]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
        (lambda cache: cache.batch_select_indices(torch.tensor([True, False, True])), [0, 2]),
    ],
    ids=["reorder", "repeat", "select", "mask"],
)
def test_rows(name, change, rows):
    model = make(name)
    mask = torch.ones_like(IDS)
    mask[1, :30] = 0  # one row is shorter
    places = (mask.cumsum(1) - 1).clamp_min(0)
    cache = FocusCache(model)
    feed(model, cache, IDS[:, :70], attention_mask=mask[:, :70], position_ids=places[:, :70])
    feed(model, cache, IDS[:, 70:71], attention_mask=mask[:, :71], position_ids=places[:, 70:71])
    change(cache)
    found = feed(model, cache, IDS[rows][:, 71:], attention_mask=mask[rows], position_ids=places[rows][:, 71:])
    wanted = logits_of(model, IDS[rows], attention_mask=mask[rows], position_ids=places[rows])[:, 71:]
    close(found, wanted, 1e-5 if name == "DeepseekV3" else 1e-9)


def test_crop_with_padding_in_the_middle():
    """Continuing a batch of chats: what is padding in one row is text in another."""
    mask = torch.ones_like(IDS)
    mask[0, 40:50] = mask[1, :20] = 0
    places = (mask.cumsum(1) - 1).clamp_min(0)
    cache = FocusCache(MODEL)
    for a, b in ((0, 45), (45, 80)):
        feed(MODEL, cache, IDS[:, a:b], attention_mask=mask[:, :b], position_ids=places[:, a:b])
    cache.crop(-33)
    found = feed(MODEL, cache, IDS[:, 47:], attention_mask=mask, position_ids=places[:, 47:])
    wanted = logits_of(MODEL, IDS, attention_mask=mask, position_ids=places)[:, 47:]
    close(found[mask[:, 47:].bool()], wanted[mask[:, 47:].bool()])


def test_reset_and_offload():
    cache = FocusCache(MODEL)
    feed(MODEL, cache, IDS[:, :50])
    cache.reset()
    assert cache.get_seq_length() == 0
    feed(MODEL, cache, IDS[:, :50])
    for layer in cache.layers:
        layer.offload()
        assert layer.buckets.device.type == "cpu"
        layer.prefetch()
    close(feed(MODEL, cache, IDS[:, 50:]), logits_of(MODEL, IDS)[:, 50:])


def test_offloaded_layers_are_on_the_device_only_while_they_are_attended(monkeypatch):
    """As transformers drives it: update, then offload, then attention. Moves are recorded: there is one device here."""
    moves, real = [], KeyBuckets.to
    monkeypatch.setattr(KeyBuckets, "to", lambda self, device: moves.append(device.type) or real(self, device))
    cache = FocusCache(MODEL)
    plain = type(cache).update

    def update(self, key, value, index, *args, **kwargs):
        found = plain(self, key, value, index, *args, **kwargs)
        self.layers[index].offload()
        return found

    monkeypatch.setattr(FocusCache, "update", update)
    found = [feed(MODEL, cache, part) for part in IDS.split([50, 1, 39], 1)]
    close(torch.cat(found, 1), logits_of(MODEL, IDS))
    assert moves == ["cpu"] * 3 * 5  # after the prompt; then at each update and after each attention


def test_the_model_and_plain_caches_become_focus_caches():
    found = MODEL(IDS[:, :50]).past_key_values
    assert all(isinstance(layer, FocusLayer) for layer in found.layers)
    for plain in (DynamicCache(), DynamicCache(config=MODEL.config)):
        feed(MODEL, plain, IDS[:, :50])
        close(feed(MODEL, plain, IDS[:, 50:]), logits_of(MODEL, IDS)[:, 50:])
        assert all(isinstance(layer, FocusLayer) for layer in plain.layers)


def test_only_retrofitted_layers_are_replaced():
    model = make("Gemma3", layers=[2])
    cache = model.focus.new_cache()
    feed(model, cache, IDS[:, :50])
    assert [type(layer) for layer in cache.layers] == [DynamicSlidingWindowLayer, DynamicLayer, FocusLayer]
    close(feed(model, cache, IDS[:, 50:]), logits_of(model, IDS)[:, 50:])


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_memory_is_near_the_plain_cache(name):
    model = retrofit(BY_NAME[name].make(dtype=torch.float32, max_position_embeddings=4096, head_dim=64))
    ids = torch.randint(2, VOCABULARY, (1, 4096))
    cache, plain = FocusCache(model), DynamicCache(config=model.config)
    feed(model, cache, ids[:, :4000])
    for token in ids[:, 4000:4032].split(1, 1):
        feed(model, cache, token)
    with model.focus.disabled():
        feed(model, plain, ids[:, :4032])
    full = sum(2 * layer.keys.numel() * layer.keys.element_size() for layer in plain.layers)
    limit = 1.1 if name == "Llama" else 1.5  # heads of 8: groups and slack weigh more
    assert cache.memory() <= limit * full


def refuses(match, call):
    with pytest.raises(FocusError, match=match):
        call()


def test_refusals():
    filled = DynamicCache(config=MODEL.config)
    with MODEL.focus.disabled():
        feed(MODEL, filled, IDS[:, :20])
    refuses("holds 20 tokens without groups", lambda: feed(MODEL, filled, IDS[:, 20:21]))
    static = StaticCache(config=MODEL.config, max_cache_len=64)
    refuses("StaticLayer, which cannot hold groups", lambda: feed(MODEL, static, IDS[:, :20]))
    cache = FocusCache(MODEL)
    feed(MODEL, cache, IDS[:, :20])
    with MODEL.focus.disabled():
        refuses("used without it", lambda: feed(MODEL, cache, IDS[:, 20:21]))
    refuses("holds 20 tokens", lambda: cache.crop(-21))
    with pytest.raises(ValueError, match="negative"):
        cache.crop(5)
    other = make(window=9)
    refuses("other Focus options", lambda: feed(other, cache, IDS[:, 20:21]))
    feed(other, FocusCache(MODEL), IDS[:, :20])
    refuses("retrofitted model", lambda: FocusCache(LLAMA.make()))


def test_soft_mode_keeps_no_cache():
    model = make()
    model.focus.mode = "soft"
    cache = DynamicCache(config=model.config)
    feed(model, cache, IDS[:, :20])
    refuses("soft mode keeps no cache", lambda: feed(model, cache, IDS[:, 20:21]))


def test_sinkhorn_cannot_generate():
    model = make(balance="sinkhorn")
    refuses("cannot generate", lambda: model.generate(IDS[:, :20], max_new_tokens=3))


@pytest.mark.parametrize("name", ["Llama", "GPTNeoX"])
def test_more_tokens_than_the_model_has_positions(name):
    """Rotary models go on; the cache grows many times over, is emptied, and serves again."""
    model = retrofit(
        BY_NAME[name].make(max_position_embeddings=32), FocusConfig(num_groups=3, top_k=1, window=8, min_length=0)
    )
    ids = torch.randint(2, VOCABULARY, (2, 260), generator=torch.Generator().manual_seed(5))
    wanted, cache = logits_of(model, ids), FocusCache(model)
    for first in (100, 7):
        parts = [first, 50, *[1] * 20]
        parts.append(260 - sum(parts))
        found = [feed(model, cache, part) for part in ids.split(parts, 1)]
        close(torch.cat(found, 1), wanted)
        cache.crop(-260)
        assert cache.get_seq_length() == 0
        assert cache.layers[0].buckets.lengths == [0, 0]


@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_cropped_again_and_again(data):
    """Within the window, beyond it, to nothing; then other tokens: as a cache that never saw the rest."""
    cache, held = FocusCache(MODEL), IDS[:, :0]
    for _ in range(data.draw(st.integers(2, 4))):
        more = IDS[:, data.draw(st.integers(0, 40)) :][:, : data.draw(st.integers(1, 45))]
        before, held = held.shape[1], torch.cat([held, more], 1)
        found = feed(MODEL, cache, more)
        close(found, logits_of(MODEL, held)[:, before:])
        most = held.shape[1]
        removed = data.draw(st.one_of(st.integers(0, min(8, most)), st.integers(0, most), st.just(most)))
        cache.crop(-removed)
        held = held[:, : held.shape[1] - removed]
        assert cache.get_seq_length() == held.shape[1]
