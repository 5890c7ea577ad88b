"""Layers that look into different numbers of groups: exact by every way of attending, saved, and undone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_retrofit import FocusCache, FocusConfig, FocusError, load_adapter, retrofit
from focus_retrofit.config import shown_k
from focus_retrofit.evaluation.methods import attending, parse_methods, rival_of, title
from tests.matrix import BY_NAME, VOCABULARY

from .oracle import logits_of, oracle

IDS = torch.randint(2, VOCABULARY, (2, 70), generator=torch.Generator().manual_seed(2))
FAMILY = BY_NAME["Llama"]


def make(layer_top_k, **options):
    config = FocusConfig(**{"num_groups": 4, "top_k": 1, "window": 8, "layer_top_k": layer_top_k, **options})
    return retrofit(FAMILY.make(), config)


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


@settings(deadline=None, max_examples=20)
@given(
    ks=st.dictionaries(st.integers(0, 2), st.integers(1, 4)),
    match=st.sampled_from(["probe", "share"]),
    temperature=st.sampled_from([None, 0.7]),
    first=st.integers(1, 68),
)
def test_as_the_contract_says_at_once_and_token_by_token(ks, match, temperature, first):
    model = make(ks, match=match, temperature=temperature)
    found = logits_of(model, IDS)
    with oracle(torch.zeros_like(IDS)):
        close(found, logits_of(model, IDS))
    cache = FocusCache(model)
    with torch.no_grad():
        parts = [model(IDS[:, :first], past_key_values=cache).logits]
        parts += [model(IDS[:, n : n + 1], past_key_values=cache).logits for n in range(first, 70)]
    close(torch.cat(parts, 1), found)


def test_all_groups_in_all_layers_are_the_base():
    close(logits_of(make({0: 4, 1: 4, 2: 4}), IDS), logits_of(FAMILY.make(), IDS))


def test_each_layer_computes_its_share():
    model = make({1: 3})
    logits_of(model, IDS)
    distant = [line.distant for line in model.focus.report().layers]
    assert distant[0] < distant[1] > distant[2]
    assert model.focus.top_k == pytest.approx(5 / 3)
    assert "k=1 to 3" in repr(model.focus)


def test_saved_and_served_with_another_k(tmp_path):
    model = make({1: 3})
    model.focus.save_pretrained(tmp_path)
    again = load_adapter(FAMILY.make(), tmp_path)
    assert again.focus.config.layer_top_k == {1: 3}
    close(logits_of(again, IDS), logits_of(model, IDS))
    everywhere = load_adapter(FAMILY.make(), tmp_path, changes={"top_k": 2})
    assert everywhere.focus.config.layer_top_k is None
    assert everywhere.focus.top_k == 2


def test_methods_have_the_same_budget():
    model = make({1: 3})
    with attending(model, "random"):
        logits_of(model, IDS)
        assert [model.focus.all_groups_seen(n).shape[-1] for n in range(3)] == [1, 3, 1]
    with attending(model, "focus", 2):
        logits_of(model, IDS)
        assert model.focus.top_k == 2
    assert model.focus.config.layer_top_k == {1: 3}
    assert rival_of(model, parse_methods("moba")[0]).share == pytest.approx(5 / 12)
    shown = [title(model, method) for method in parse_methods("focus,random,moba,focus:2,full")]
    assert shown[:3] == ["Focus, k = 1 to 3", "random groups, k = 1 to 3", "MoBA blocks, k = 1.67"]
    assert shown[3:] == ["Focus, k = 2", "full attention"]


def test_what_is_shown():
    assert shown_k({"top_k": 2}) == "2"
    assert shown_k({"top_k": 2, "layer_top_k": {"1": 4, "7": 1}}) == "1 to 4"


def test_a_layer_that_is_not_there():
    with pytest.raises(FocusError, match=r"layers \[7\] that are not retrofitted; these are: \[0, 1, 2\]"):
        make({7: 2})
    with pytest.raises(FocusError, match=r"layers \[1\] that are not retrofitted; these are: \[0\]"):
        make({1: 2}, layers=[0])
