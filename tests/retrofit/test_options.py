"""The learned parts: temperature, balance, what a report says, and how many parameters there are."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

from focus_retrofit import FocusConfig, FocusError, retrofit
from focus_retrofit.balance import fit_potentials, sinkhorn
from focus_retrofit.stats import count_pairs, local_pairs
from tests.matrix import BY_NAME, VOCABULARY

from .oracle import expected, logits_of

IDS = torch.randint(2, VOCABULARY, (2, 70), generator=torch.Generator().manual_seed(6))
CONFIG = {"num_groups": 4, "top_k": 1, "window": 8}
LLAMA = BY_NAME["Llama"]


def close(found, wanted, atol=1e-9):
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("temperature", "scope"),
    [(t, scope) for t in (0.6, "learned", "heads") for scope in ("distant", "all")] + [("input", "all")],
)
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_temperatures(temperature, scope, mode):
    model = LLAMA.make()
    base = logits_of(model, IDS)
    retrofit(model, FocusConfig(**CONFIG, temperature=temperature, temperature_scope=scope))
    model.focus.mode = mode
    if temperature != 0.6:  # learning starts at 1, which is the base's softmax
        close(logits_of(model, IDS[:, :9]), base[:, :9])
        with torch.no_grad():
            for index in model.focus.layer_indices:
                value = model.focus.router(index).temperature
                drawn = {"learned": torch.full_like(value, 0.7), "heads": torch.rand_like(value) + 0.5}
                value.copy_(drawn.get(temperature, torch.randn_like(value) / 9))
    found = logits_of(model, IDS)
    close(found, expected(model, IDS), 1e-6 if temperature == "input" else 1e-9)
    cache = model.focus.new_cache()
    if mode == "hard":
        with torch.no_grad():
            parts = [model(part, past_key_values=cache).logits for part in IDS.split([50, 1, 19], 1)]
        close(torch.cat(parts, 1), found, 1e-6 if temperature == "input" else 1e-9)


@pytest.mark.parametrize("temperature", ["learned", "heads", "input"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_temperatures_learn_within_their_clip(temperature, mode):
    options = {"temperature": temperature, "temperature_scope": "all", "temperature_min": 0.5}
    model = retrofit(LLAMA.make(), FocusConfig(**CONFIG, **options))
    model.focus.mode = mode
    model(IDS, labels=IDS, use_cache=False).loss.backward()
    router = model.focus.router(1)
    assert float(router.temperature.grad.abs().sum()) > 0
    with torch.no_grad():
        router.temperature.fill_(-50.0)
    value = router.token_temperature(torch.ones(1, 2, 32)) if temperature == "input" else router.layer_temperature()
    assert value.min().item() == value.max().item() == 0.5


def test_potentials_balance_the_groups():
    scores = torch.randn(2000, 6, generator=torch.Generator().manual_seed(0)) * 3 + torch.arange(6)
    fitted = fit_potentials(scores, torch.zeros(6))
    shares = torch.softmax(scores + fitted, -1).mean(0)
    assert float((shares - 1 / 6).abs().max()) < 1e-3


def test_routers_compute_in_fp32_under_autocast():
    router = retrofit(LLAMA.make(), FocusConfig(**CONFIG)).focus.router(0)
    hidden = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(0))
    want = router.logits(hidden)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(router.logits(hidden), want)


def test_balance_fits_every_layer_on_what_it_sees():
    text = torch.randint(2, VOCABULARY, (4, 300), generator=torch.Generator().manual_seed(3))
    model = retrofit(LLAMA.make(), FocusConfig(**CONFIG))
    logits_of(model, text)
    before = max(max(line.shares) for line in model.focus.report().layers)
    model.focus.balance(text)
    logits_of(model, text)
    after = max(max(line.shares) for line in model.focus.report().layers)
    assert before > after and after < 0.33
    again = [model.focus.router(n).potentials.clone() for n in range(3)]
    logits_of(model, IDS)
    assert all(torch.equal(model.focus.router(n).potentials, b) for n, b in enumerate(again)), "only balance() fits"
    with pytest.raises(FocusError, match="no potentials to fit"):
        retrofit(LLAMA.make(), FocusConfig(balance="softmax")).focus.balance(text)


def test_sinkhorn_balances_each_sequence_and_leaks():
    scores = torch.randn(2, 200, 4, generator=torch.Generator().manual_seed(0)) * 2
    real = torch.ones(2, 200, dtype=torch.bool)
    real[1, 120:] = False
    shares = [(p[r].exp().mean(0) - 0.25).abs().max() for p, r in zip(sinkhorn(scores, 50, real), real, strict=True)]
    assert float(max(shares)) < 1e-3
    model = retrofit(LLAMA.make(dtype=torch.float32), FocusConfig(**CONFIG, balance="sinkhorn"))
    assert model.focus.config.leaks and not FocusConfig().leaks
    model.focus.mode = "soft"
    changed = IDS.clone()
    changed[:, 60:] = 5
    assert not torch.equal(logits_of(model, IDS)[:, :60], logits_of(model, changed)[:, :60])


def test_report_counts_pairs():
    model = retrofit(LLAMA.make(), FocusConfig(**{**CONFIG, "top_k": 2}, layers="1:"))
    assert model.focus.report().layers[1].routing == "not run yet"
    mask = torch.ones_like(IDS)
    mask[0, :25] = 0
    logits_of(model, IDS, attention_mask=mask)
    report = model.focus.report()
    assert [line.layer for line in report.layers] == [0, 1, 2]
    assert report.layers[0].routing.startswith("dense") and report.layers[0].density is None
    for line in report.layers[1:]:
        assert "cpu" in line.routing and 0 < line.distant < line.density
        assert abs(sum(line.shares) - 1) < 1e-6 and 0.25 < line.confidence <= 1
    assert "group shares" in str(report) and report.to_dict()["layers"][2]["density"] == report.layers[2].density


@pytest.mark.parametrize("match", ["probe", "share"])
@pytest.mark.parametrize("dense_below", [0, 23])
def test_density_is_the_share_of_visible_pairs(match, dense_below):
    config = FocusConfig(**{**CONFIG, "top_k": 2}, match=match)
    groups = torch.rand(60, 4, generator=torch.Generator().manual_seed(1)).topk(2).indices
    visible = 0
    for i in range(60):
        for j in range(i + 1):
            keys = groups[j].tolist()[: 1 if match == "probe" else 2]
            seen = i - j <= 8 or j < 4 or bool(set(groups[i].tolist()) & set(keys))
            visible += seen or i < dense_below
    assert count_pairs(groups, config, dense_below) == (visible, 60 * 61 // 2)
    for tokens in (1, 8, 9, 10, 60):
        assert local_pairs(tokens, 8) == sum(i - j <= 8 for i in range(tokens) for j in range(i + 1))


def test_parameters_of_gpt2():
    """The 148K of the paper: twelve layers of 768, K = 4."""
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    retrofit(model, FocusConfig(num_groups=4))
    assert model.focus.num_parameters() == 148_224


def test_a_copy_of_the_model_is_its_own():
    model = retrofit(LLAMA.make(), FocusConfig(**CONFIG))
    wanted = logits_of(model, IDS)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copied.focus.trainable_parameters():
            parameter.copy_(torch.randn_like(parameter))
    assert not torch.equal(logits_of(copied, IDS), wanted)
    copied.focus.unload()
    assert torch.equal(logits_of(model, IDS), wanted)
    with pytest.raises(FocusError, match="copy the model"):
        copy.deepcopy(model.focus)


def test_min_length_auto_is_measured_once(tmp_path, monkeypatch):
    from focus_retrofit import calibrate

    monkeypatch.setenv("FOCUS_RETROFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "LENGTHS", (32, 64))
    model = retrofit(LLAMA.make(dtype=torch.float32), FocusConfig(**CONFIG, min_length="auto"))
    found = model.focus.dense_below
    assert found in (32, 64, 128) and (tmp_path / "cache" / "crossover.json").is_file()
    monkeypatch.setattr(calibrate, "measure", lambda *args: 1 / 0)
    model.focus.unload()
    assert retrofit(model, FocusConfig(**CONFIG, min_length="auto")).focus.dense_below == found
