"""Each rival keeps to its budget, to the past, and to the mask it claims, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from focus_kernels import FocusError
from focus_retrofit.evaluation import attending, evaluate, parse_methods, prepare
from focus_retrofit.rivals import RIVALS, Rival, Text, seer, sparq
from focus_retrofit.rivals.reading import read_layers
from focus_retrofit.rivals.window import band_pairs, width_for
from tests.training.tiny import model as make_model

T, WINDOW, SINKS, K = 64, 8, 2, 4
NAMES = list(RIVALS)
EXACT = [name for name in NAMES if name not in ("window", "routing")]  # those that compute k / K of the distant pairs


@pytest.fixture(scope="module")
def model():
    model = make_model()
    texts = list(torch.randint(1, 27, (2, T), generator=torch.Generator().manual_seed(0)))
    prepare(model, parse_methods("seer,routing"), texts * 8)
    return model


def rival(model, name, share=1 / K):
    if RIVALS[name].learns:
        return model.focus.rivals[parse_methods(name)[0]]
    return RIVALS[name](share, WINDOW, SINKS)


def text(tokens=T, layer=1, seed=0, heads=(4, 2), size=8):
    random = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(count, tokens, size, generator=random, dtype=torch.float64) for count in (*heads, heads[1])
    )
    return Text(layer, 3, query, key, value, size**-0.5)


def dense(text, mask):
    """Softmax over what the mask lets through, written out."""
    key, value = (x.repeat_interleave(text.repeat, 0) for x in (text.key, text.value))
    logits = (text.query @ key.transpose(1, 2) * text.scale).masked_fill(~mask, float("-inf"))
    return logits.softmax(-1) @ value


def likeness(model, name):
    """A text with the heads of the model, for rivals that learned on it."""
    config = model.config
    size = config.hidden_size // config.num_attention_heads
    return {"heads": (config.num_attention_heads, config.num_key_value_heads), "size": size}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokens", [1, 7, 9, 37, 64, 131])
def test_output_is_softmax_over_the_mask(model, name, tokens):
    given = text(tokens, **likeness(model, name))
    found, pairs = (one := rival(model, name)).attend(given)
    mask = one.visible(given)
    torch.testing.assert_close(found, dense(given, mask), rtol=0, atol=1e-12)
    assert pairs == pytest.approx(int(mask.sum()) / mask.shape[0])


@pytest.mark.parametrize("name", NAMES)
def test_window_and_sinks_are_always_seen_and_the_future_never(model, name):
    given = text(**likeness(model, name))
    mask, distance = rival(model, name).visible(given), given.distance()
    near = (distance >= 0) & ((distance <= WINDOW) | (torch.arange(T) < SINKS))
    assert bool(mask[:, near].all())
    assert not bool(mask[:, distance < 0].any())


@pytest.mark.parametrize("name", NAMES)
def test_no_choice_depends_on_later_tokens(model, name):
    shape = likeness(model, name)
    one, other = text(seed=1, **shape), text(seed=2, **shape)
    for cut in (20, 41, 63):
        mixed = Text(1, 3, *(torch.cat([a[:, :cut], b[:, cut:]], 1) for a, b in (
            (one.query, other.query), (one.key, other.key), (one.value, other.value))), one.scale)  # fmt: skip
        first, second = (rival(model, name).visible(x)[:, :cut] for x in (one, mixed))
        assert torch.equal(first, second)


@pytest.mark.parametrize(("name", "k"), [(x, k) for x in EXACT for k in (1, 2) if k == 1 or not RIVALS[x].learns])
def test_budget_is_kept(model, name, k):
    """Over all layers, as many distant pairs as k / K, to the rounding of its units."""
    tokens = 1000
    given = [text(tokens, layer=n, **likeness(model, name)) for n in range(3)]
    one = rival(model, name, k / K)
    if name in ("seer",):
        given = [x for x in given if x.layer in one.gates]
    beyond = tokens - WINDOW - 1
    local, total = tokens * (tokens + 1) // 2 - beyond * (beyond + 1) // 2, tokens * (tokens + 1) // 2
    shares = [(int(one.visible(x).sum()) / len(one.visible(x)) - local) / (total - local) for x in given]
    sinks = (band_pairs(tokens, WINDOW, SINKS) - local) / (total - local)
    assert sum(shares) / len(shares) == pytest.approx(k / K + sinks * (1 - k / K), abs=0.005)


def test_a_wide_window_is_the_nearest_that_there_is():
    for tokens, share in [(50, 0.25), (64, 0.5), (1000, 0.25), (1000, 1.0)]:
        width = width_for(tokens, WINDOW, SINKS, share)
        near, total = band_pairs(tokens, WINDOW, SINKS), tokens * (tokens + 1) // 2
        wanted = near + share * (total - near)
        errors = {w: abs(band_pairs(tokens, w, SINKS) - wanted) for w in range(WINDOW, tokens)}
        assert errors[width] == min(errors.values())


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_neighbours_change_nothing(model, name):
    ids = torch.randint(1, 27, (3, T), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, :20] = 0  # padded on the left
    mask[2, 45:] = 0  # and on the right
    with torch.inference_mode(), attending(model, name):
        places = (mask.cumsum(1) - 1).clamp_min(0)
        together = model(ids, attention_mask=mask, position_ids=places, use_cache=False).logits
        for row in range(3):
            real = mask[row].bool()
            alone = model(ids[row, real][None], use_cache=False).logits[0]
            torch.testing.assert_close(together[row, real], alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_sparsity_happens_and_short_texts_equal_the_base(model, name):
    ids = torch.randint(1, 27, (1, T), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        with model.focus.disabled():
            base = model(ids, use_cache=False).logits
        with attending(model, name):
            found = model(ids, use_cache=False).logits
            density = [line.density for line in model.focus.report().layers]
    torch.testing.assert_close(found[:, : WINDOW + 1], base[:, : WINDOW + 1], rtol=0, atol=1e-9)
    assert float((found - base).abs().max()) > 1e-6
    assert all(0 < x < 1 for x in density)


def test_what_must_learn_says_so(model):
    with pytest.raises(FocusError, match="learns from training text"), attending(model, "routing", 3):
        pass
    with pytest.raises(FocusError, match="call prepare"):
        RIVALS["seer"](0.25, WINDOW, SINKS).visible(text())


def test_rivals_keep_no_cache(model):
    with pytest.raises(FocusError, match="moba keeps no cache"), attending(model, "moba"):
        model(torch.ones(1, 20, dtype=torch.long), use_cache=True)


def test_a_gate_learns_what_full_attention_looks_at(model, monkeypatch):
    """On the text it learned from, it keeps more of full attention's weight than as it was drawn."""
    texts = list(torch.randint(1, 27, (2, T), generator=torch.Generator().manual_seed(0)))
    monkeypatch.setattr(seer, "STEPS", 0)
    drawn = RIVALS["seer"](1 / K, WINDOW, SINKS)
    drawn.prepare(model, texts)
    kept = {"learned": 0.0, "drawn": 0.0}

    def look(given):
        weights = given.logits().masked_fill(given.distance() < 0, float("-inf")).softmax(-1)
        for name, one in (("learned", rival(model, "seer")), ("drawn", drawn)):
            kept[name] += float((weights * one.visible(given)).sum())

    read_layers(model, texts, look)
    assert kept["learned"] > kept["drawn"]


def test_heavy_hitters_never_come_back(model):
    mask = rival(model, "h2o").visible(text(100))
    place = torch.arange(100)
    far = (place[:, None] - place > WINDOW) & (place >= SINKS)
    back = mask[:, 1:] & ~mask[:, :-1] & far[1:] & far[:-1]
    assert not bool(back.any())


def test_approximate_logits_find_the_largest(model, monkeypatch):
    """With all components read the choice is the best there is."""
    given, one = text(200), rival(model, "sparq")
    real = given.logits().masked_fill(given.distance() < 0, float("-inf")).softmax(-1)
    guessed = float((real * one.visible(given)).sum())
    monkeypatch.setattr(sparq, "PART", 1)
    assert float((real * one.visible(given)).sum()) > guessed


def test_a_method_of_ones_own(model, monkeypatch):
    @dataclass
    class EveryOther(Rival):
        name = "everyother"
        title = "every other key"
        what = "every second key"

        def chosen(self, text):
            return (text.distance() % 2 == 0)[None]

    monkeypatch.setitem(RIVALS, "everyother", EveryOther)
    (row,) = evaluate(model, [torch.arange(T) % 26 + 1], parse_methods("everyother"))
    assert row["method"] == "every other key, k = 1"
    assert row["distant"] == pytest.approx(0.5, abs=0.05)
