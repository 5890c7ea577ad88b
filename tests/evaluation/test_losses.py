"""Losses by slices of the hidden states are those of all logits at once, and nothing of the way stays behind."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import DynamicCache

from focus_retrofit import FocusConfig, retrofit
from focus_retrofit.evaluation import losses as module
from focus_retrofit.evaluation.losses import losses_in_chunks, token_losses
from focus_retrofit.evaluation.perplexity import doubling_edges, read_window, summarise
from tests.matrix import BY_NAME, VOCABULARY

TOKENS = 61


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(module, "SLICE", 16)


@pytest.fixture
def ids():
    return torch.randint(2, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(1))


def at_once(model, ids):
    with torch.no_grad():
        logits = model(ids[None], use_cache=False).logits[0, :-1]
    return cross_entropy(logits.float(), ids[1:], reduction="none")


@pytest.mark.parametrize("name", ["GPT2", "Llama", "Gemma2", "Mixtral"])
def test_slices_are_the_whole(name, ids):
    """Gemma-2 caps its logits after the matrix: the head is the model's own."""
    options = {"final_logit_softcapping": 0.5} if name == "Gemma2" else {}
    model = BY_NAME[name].make(**options)
    before = dict(vars(model.base_model))
    found, seconds = token_losses(model, ids)
    torch.testing.assert_close(found, at_once(model, ids), rtol=0, atol=1e-5)
    assert found.shape == (TOKENS - 1,) and seconds > 0
    assert vars(model.base_model) == before and not model.base_model._forward_hooks
    wide = []
    head = model.get_output_embeddings()
    hook = head.register_forward_hook(lambda module, args, out: wide.append(out.shape[1]))
    token_losses(model, ids)
    hook.remove()
    assert max(wide) == 16


@pytest.mark.parametrize("chunk", [7, 20, 60, 61, 100])
def test_chunks_are_the_whole(ids, chunk):
    model = BY_NAME["Llama"].make()
    wanted, read = at_once(model, ids), []
    found = losses_in_chunks(model, ids, DynamicCache(config=model.config), chunk, read.append)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert sum(read) == TOKENS
    retrofit(model, FocusConfig(num_groups=4, top_k=1, window=8))
    focused = losses_in_chunks(model, ids, model.focus.new_cache(), chunk)
    torch.testing.assert_close(focused, token_losses(model, ids)[0], rtol=0, atol=1e-5)
    assert (focused - wanted).abs().max() > 1e-3


def test_what_fails_leaves_the_model_as_it_was(ids, monkeypatch):
    model = BY_NAME["Llama"].make()
    wanted = at_once(model, ids)
    monkeypatch.setattr(module, "_losses", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        token_losses(model, ids)
    assert torch.equal(at_once(model, ids), wanted)


def test_ranges_double(ids, monkeypatch):
    assert doubling_edges(1023) == [0, 255, 511, 1023]
    assert doubling_edges(1000) == [0, 255, 511, 1000]
    assert doubling_edges(100) == [0, 100]
    assert doubling_edges(8191)[-2:] == [4095, 8191]
    monkeypatch.setattr(import_module("focus_retrofit.evaluation.perplexity"), "FIRST", 8)
    model = BY_NAME["Llama"].make()
    cell, wanted = read_window(model, ids), at_once(model, ids)
    assert cell["by_doubling"] == pytest.approx(
        [float(wanted[a:b].mean()) for a, b in ((0, 7), (7, 15), (15, 31), (31, 60))]
    )
    assert read_window(model, ids, scored=20)["by_doubling"][:3] == [None] * 3
    row = summarise([cell, cell])
    assert [x["perplexity"] for x in row["by_doubling"]] == pytest.approx(
        torch.tensor(cell["by_doubling"]).exp().tolist()
    )
    assert "by_doubling" not in summarise([{x: cell[x] for x in cell if x != "by_doubling"}])  # of an older file
