"""Ways to attend, each with the density it claims, and nothing left behind."""

from __future__ import annotations

import pytest
import torch

from focus_kernels import FocusError
from focus_retrofit.evaluation import attending, evaluate, parse_methods, perplexity
from focus_retrofit.evaluation.texts import overlap, split
from tests.training.tiny import model as make_model

T, WINDOW, SINKS, K = 64, 8, 2, 4


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def windows():
    return list(torch.randint(1, 27, (3, T), generator=torch.Generator().manual_seed(1)))


def visible(groups):
    """Pairs by the contract, k = 1: [T, T] for groups [T]."""
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    return (j <= i) & ((i - j <= WINDOW) | (j < SINKS) | (groups[:, None] == groups[None]))


def test_rows_say_what_was_computed(model, windows):
    rows = evaluate(model, windows, parse_methods("full,window,strided,focus,focus:4,soft"))
    full, window, strided, focus, everything, soft = rows
    causal = T * (T + 1) // 2
    assert full["density"] == 1
    assert window["density"] == pytest.approx(int(visible(torch.arange(T)).sum()) / causal)
    assert strided["density"] == pytest.approx(int(visible(torch.arange(T) % K).sum()) / causal)
    assert window["density"] < focus["density"] < 1
    assert everything["density"] == soft["density"] == 1
    assert [row["kind"] for row in rows] == ["full", "baseline", "baseline", "focus", "focus", "focus"]


def test_differences_are_paired(model, windows):
    full, window = evaluate(model, windows, parse_methods("full,window"))
    ratio = window["perplexity"] / full["perplexity"] - 1
    assert window["over_full"] == pytest.approx(ratio)
    assert window["over_full_error"] > 0


def test_perplexity_is_exp_of_the_mean_loss(model, windows):
    with torch.inference_mode():
        losses = [model(x[None], labels=x[None], use_cache=False).loss for x in windows]
    found = perplexity(model, windows, "x")
    assert found["perplexity"] == pytest.approx(torch.stack(losses).mean().exp().item())
    assert perplexity(model, windows[:1], "x")["standard_error"] is None


def test_a_window_alone_is_the_dense_mask(model, windows):
    """Every token in its own group, on each backend's oracle, equals a mask of window and sinks."""
    ids = windows[0][None]
    mask = torch.zeros(T, T, dtype=torch.float64).masked_fill(~visible(torch.arange(T)), float("-inf"))
    with torch.inference_mode(), attending(model, "window"):
        found = model(ids, use_cache=False).logits
    with torch.inference_mode(), model.focus.disabled():
        expected = model(ids, attention_mask=mask[None, None], use_cache=False).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", ["full", "window", "random", "strided", "focus", "soft"])
def test_nothing_is_left_behind(model, windows, method):
    focus = model.focus
    before = (focus.config.to_dict(), focus.mode, focus.backend, focus.enabled)
    with torch.inference_mode():
        first = model(windows[0][None], use_cache=False).logits
        with pytest.raises(RuntimeError, match="stop"), attending(model, method):
            model(windows[0][None], use_cache=False)
            raise RuntimeError("stop")
        assert (focus.config.to_dict(), focus.mode, focus.backend, focus.enabled) == before
        assert torch.equal(model(windows[0][None], use_cache=False).logits, first)


def test_random_groups_differ_by_layer_and_have_temperature_one(model, windows):
    with torch.inference_mode(), attending(model, "random"):
        model(windows[0][None], use_cache=False)
        seen = [model.focus.groups_seen(index) for index in model.focus.layer_indices]
        assert model.focus.router(0).layer_temperature() is None
    assert not torch.equal(seen[0], seen[1])
    assert model.focus.router(0).layer_temperature() is not None


@pytest.mark.parametrize("text", ["", "best", "full:2", "focus:0", "focus:x", "full,,focus"])
def test_unknown_methods_are_named(text):
    with pytest.raises(FocusError, match="is not known"):
        parse_methods(text)


def test_more_groups_than_there_are(model, windows):
    with pytest.raises(FocusError, match="asks for 5 groups"):
        evaluate(model, windows, [("focus", 5)])


@pytest.mark.parametrize("name", ["reference", "source"])
def test_held_out_text_is_not_in_the_training_text(name):
    training, held = split(name)
    assert sum(map(len, training)) > 5 * sum(map(len, held)) > 0
    assert overlap(training, held) == 0
