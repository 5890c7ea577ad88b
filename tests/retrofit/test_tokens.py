"""Decoding in few calls: a token per row, through the cache, is the same as the whole text at once."""

import copy
from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from focus_retrofit import FocusConfig, FocusError, hard, lane, retrofit
from focus_retrofit import cache as cache_module
from focus_retrofit.cache import FocusCache
from focus_retrofit.lane import Lane
from focus_retrofit.router import Router
from tests.matrix import BY_NAME, FAMILIES, VOCABULARY
from tests.retrofit.oracle import logits_of

IDS = torch.randint(2, VOCABULARY, (3, 120), generator=torch.Generator().manual_seed(5))


def make(**options):
    model = retrofit(BY_NAME["Llama"].make(), FocusConfig(**{"num_groups": 4, "top_k": 1, "window": 8, **options}))
    with torch.no_grad():
        for router in model.focus.routers.values():
            router.potentials.uniform_(-0.5, 0.5)
            if isinstance(options.get("temperature"), str):
                router.temperature.uniform_(0.5, 0.8)
    return model


def feed(model, cache, ids):
    with torch.no_grad():
        return model(ids, past_key_values=cache).logits


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


@pytest.fixture
def served(monkeypatch):
    """How many tokens of layers went a short way."""
    counts = [0]

    def counting(right):
        def counted(*args, **kwargs):
            out = right(*args, **kwargs)
            counts[0] += out is not None
            return out

        return counted

    monkeypatch.setattr(hard, "attend_next", counting(hard.attend_next))
    monkeypatch.setattr(Lane, "take", counting(Lane.take))
    return counts


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.sampled_from(["chunk", "tokens", "crop", "rows", "copy"]), min_size=2, max_size=8),
    rows=st.integers(1, 3),
    top_k=st.sampled_from([1, 2]),
    match=st.sampled_from(["probe", "share"]),
    sinks=st.sampled_from([0, 4]),
    min_length=st.sampled_from([0, 5, 40, 70]),
    cooling=st.sampled_from(
        [(None, "distant"), (0.7, "distant"), (0.7, "all"), ("learned", "distant"), ("heads", "distant")]
    ),
    few=st.sampled_from([0, 10, 256]),
    data=st.data(),
)
def test_tokens_between_anything(monkeypatch, steps, rows, top_k, match, sinks, min_length, cooling, few, data):
    monkeypatch.setattr(cache_module, "FEW", few)
    routing = {"top_k": top_k, "match": match, "sinks": sinks, "min_length": min_length}
    model = make(**routing, temperature=cooling[0], temperature_scope=cooling[1])
    cache, held = FocusCache(model), IDS[:rows, :0]
    for step in ("chunk", *steps, "tokens"):
        before = held.shape[1]
        if step == "crop":
            removed = data.draw(st.integers(0, before - 1))
            cache.crop(-removed)
            held = held[:, : before - removed]
            continue
        if step == "rows":
            order = torch.tensor(data.draw(st.lists(st.integers(0, len(held) - 1), min_size=1, max_size=3)))
            cache.batch_select_indices(order)
            held = held[order]
            continue
        if step == "copy":
            cache = copy.deepcopy(cache)
            continue
        count = data.draw(st.integers(1, 30))
        new = IDS[: len(held), data.draw(st.integers(0, 80)) :][:, :count]
        held = torch.cat([held, new], 1)
        parts = new.split(1 if step == "tokens" else count, 1)
        found = torch.cat([feed(model, cache, part) for part in parts], 1)
        close(found, logits_of(model, held)[:, before:])


@pytest.mark.parametrize("min_length", [0, 200])
def test_takes_the_short_way(served, min_length):
    model = make(min_length=min_length)
    cache = FocusCache(model)
    feed(model, cache, IDS[:, :60])
    for place in range(60, 90):
        feed(model, cache, IDS[:, place : place + 1])
    layers = len(model.focus.layer_indices)
    assert served[0] >= 29 * layers  # the first token may have to move others
    density = model.focus.report().layers[0].decode_density
    assert (density is None) if min_length else (0 < density < 1)


@pytest.mark.parametrize(
    "options, around",
    [
        ({"temperature": "input", "temperature_scope": "all"}, nullcontext),
        ({}, lambda: torch.autocast("cpu", torch.bfloat16)),
        ({}, torch.enable_grad),
    ],
)
def test_leaves_what_is_not_for_it(served, options, around):
    model = make(**options)
    with torch.no_grad(), around():
        cache = FocusCache(model)
        for part in (IDS[:, :30], IDS[:, 30:31], IDS[:, 31:32]):
            model(part, past_key_values=cache)
    assert served[0] == 0


@pytest.mark.parametrize("few", [0, 1 << 18])
def test_dense_tokens_are_routed_many_at_once(monkeypatch, few):
    monkeypatch.setattr(lane, "AHEAD", 16)
    monkeypatch.setattr(cache_module, "FEW", few)
    model, calls, right = make(min_length=100), [], Router.groups
    monkeypatch.setattr(Router, "groups", lambda self, logits: calls.append(logits.shape[:2]) or right(self, logits))
    cache = FocusCache(model)
    found = [feed(model, cache, IDS[:, :60])]
    layers = len(model.focus.layer_indices)
    assert len(calls) == (0 if few else layers)
    found += [feed(model, cache, part) for part in IDS[:, 60:101].split(1, 1)]
    assert sum(tokens for _, tokens in calls) == 101 * layers
    assert len(calls) <= 6 * layers
    found.append(feed(model, cache, IDS[:, 101:]))
    close(torch.cat(found, 1), logits_of(model, IDS))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_dense_tokens_are_the_bases_bit_for_bit(served, family, rows):
    """In the base's own attention, with whatever it has beside keys and values."""
    model = retrofit(family.make(), FocusConfig(num_groups=4, top_k=1, window=8, min_length=60))
    cache, plain = FocusCache(model), DynamicCache(config=model.config)
    for part in IDS[:rows, :60].split([50, *[1] * 10], 1):
        found = feed(model, cache, part)
        with model.focus.disabled():
            assert torch.equal(found, feed(model, plain, part))
    latent = any(layer.latent for layer in model.focus._layers)  # these go the general way
    assert served[0] == (0 if latent else 10 * len(model.focus.layer_indices))


def test_a_short_text_is_filed_when_somebody_asks():
    model = make(min_length=60)
    cache, layers = FocusCache(model), len(model.focus.layer_indices)
    feed(model, cache, IDS[:, :50])
    assert [layer.lane is not None for layer in cache.layers] == [True] * layers
    assert cache.get_seq_length() == 50 and cache.layers[0].batch_size == len(IDS)
    held = cache.memory()
    assert held > 0 and all(layer.lane is not None for layer in cache.layers)
    cache.crop(-1)
    assert all(layer.lane is None for layer in cache.layers) and held < 1.5 * cache.memory()
    feed(model, cache, IDS[:, 49:50])  # what is in order goes on from there
    assert all(layer.lane is not None for layer in cache.layers)
    long = FocusCache(model)
    feed(model, long, IDS[:, :61])
    assert all(layer.lane is None for layer in long.layers)


def test_few_hidden_states_wait(monkeypatch):
    """However wide a model and however large its batch are."""
    model, cache = make(min_length=100), None
    width = IDS.shape[0] * model.config.hidden_size
    for module in (lane, cache_module):
        monkeypatch.setattr(module, "FEW", 10 * width)
    for first in (10, 11):
        cache = FocusCache(model)
        for part in IDS[:, :60].split([first, *[1] * (60 - first)], 1):
            feed(model, cache, part)
            waiting = cache.layers[0].lane.hidden
            assert sum(x.numel() for x in waiting) <= 21 * width
            assert bool(waiting) == (first == 10 or cache.get_seq_length() > 11)


def test_the_first_tokens_are_copied_before_another_is_written():
    key, value = torch.randn(2, 1, 2, 5, 4)
    kept, router = Lane(key, value), make().focus.router(0)
    assert kept.keys.data_ptr() == key.data_ptr()
    new = torch.ones(1, 2, 1, 4)
    keys, values = kept.take(new, new, torch.zeros(1, 1, 8), router)
    assert torch.equal(keys, torch.cat([key, new], 2)) and torch.equal(values, torch.cat([value, new], 2))
    assert keys.data_ptr() != key.data_ptr() and kept.room > 6


def test_a_report_of_a_short_text_is_that_of_any(monkeypatch):
    reports = []
    for few in (0, 1 << 18):
        monkeypatch.setattr(cache_module, "FEW", few)
        model = make(min_length=60)
        feed(model, FocusCache(model), IDS[:, :50])
        reports.append((model.focus.report(), model.focus.groups_seen(0)))
    (eager, groups), (later, same) = reports
    assert eager == later and eager.layers[0].shares and eager.layers[0].density == 1
    assert torch.equal(groups, same)


def test_dense_tokens_in_and_out_of_inference_mode():
    model, found = make(min_length=100), []
    cache, modes = FocusCache(model), [torch.inference_mode, torch.no_grad]
    for number, part in enumerate(IDS.split([60, *[10] * 6], 1)):
        with modes[number % 2]():
            found += [model(some, past_key_values=cache).logits for some in part.split(60 if not number else 1, 1)]
    close(torch.cat(found, 1), logits_of(model, IDS))


def test_a_broken_token_is_seen_by_those_that_see_it():
    for min_length in (0, 100):
        model = make(min_length=min_length)
        with torch.no_grad():
            model.get_input_embeddings().weight[7] = float("nan")
        cache = FocusCache(model)
        feed(model, cache, IDS[:1, :40].clamp_min(8))
        ids = IDS[:1, 40:60].clamp_min(8)
        good = [feed(model, cache, part) for part in ids[:, :5].split(1, 1)]
        broken = feed(model, cache, torch.tensor([[7]]))
        assert torch.cat(good, 1).isfinite().all()
        assert broken.isnan().all()
        assert feed(model, cache, ids[:, 5:6]).isnan().any()
        cache.crop(-2)
        assert feed(model, cache, ids[:, 5:6]).isfinite().all()


def test_what_was_held_in_order_leaves_no_room_behind():
    model = make(min_length=600)
    ids, caches = IDS[:1].repeat(1, 6), []
    for prompt in (590, 610):
        cache = FocusCache(model)
        feed(model, cache, ids[:, :prompt])
        for place in range(prompt, 620):
            feed(model, cache, ids[:, place : place + 1])
        caches.append(cache.memory())
    assert caches[0] < 1.1 * caches[1]


def test_a_new_text_has_the_router_of_its_time():
    model = make()
    cache = FocusCache(model)
    with torch.inference_mode():
        for part in IDS[:, :50].split([47, 1, 1, 1], 1):
            model(part, past_key_values=cache)
    feed(model, copy.deepcopy(cache), IDS[:, 50:51])  # not in inference mode any more
    cache.crop(-50)
    with torch.no_grad():
        for router in model.focus.routers.values():
            router.centroids.mul_(-1)
    found = [feed(model, cache, part) for part in IDS[:, :60].split([47, *[1] * 13], 1)]
    close(torch.cat(found, 1), logits_of(model, IDS[:, :60]))


def test_another_number_of_groups_is_refused_under_way():
    model = make(top_k=1)
    cache = FocusCache(model)
    feed(model, cache, IDS[:, :30])
    feed(model, cache, IDS[:, 30:31])
    model.focus.config.top_k = 2
    with pytest.raises(FocusError, match="lists 2 groups, earlier ones 1"):
        feed(model, cache, IDS[:, 31:32])
