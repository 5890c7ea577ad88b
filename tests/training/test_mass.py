"""The mass and sensitivity of pairs, against attention written out, and the loss over them against autograd."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_retrofit import FocusConfig, retrofit
from focus_retrofit.training.mass import lost_mass, masses, sensitivities
from focus_retrofit.training.objectives import Objective
from tests.matrix import BY_NAME

CONFIG = FocusConfig(num_groups=4, top_k=1, window=8, sinks=2)


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 40), groups=st.integers(1, 5), cuts=st.lists(st.integers(1, 39), max_size=3))
def test_lost_mass_and_its_gradient_are_those_of_the_pairs_written_out(tokens, groups, cuts):
    generator = torch.Generator().manual_seed(tokens)
    scores = torch.randn(2, tokens, groups, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(2, tokens, tokens, generator=generator, dtype=torch.float64)
    soft = scores.softmax(-1)
    pairs = (weight * (soft @ soft.mT)).sum((1, 2)) / weight.sum((1, 2))
    ends = sorted({0, tokens, *(c for c in cuts if c < tokens)})
    blocks = [slice(a, b) for a, b in pairwise(ends)]
    mine = lost_mass(soft, ((some, weight[:, some]) for some in blocks))
    torch.testing.assert_close(mine, (1 - pairs).mean())
    torch.testing.assert_close(
        *(torch.autograd.grad(loss, scores, retain_graph=True)[0] for loss in (mine, (1 - pairs).mean()))
    )


def watched(family, tokens=40, **kwargs):
    """What layer 1 of a small model was given, its output, and the output's gradient for a random loss."""
    model = retrofit(BY_NAME[family].make(), CONFIG).eval()
    model.enable_input_require_grads()
    seen, outputs = {}, {}

    def watch(layer):
        seen[layer.index] = layer

        def after(out):
            out.retain_grad()
            outputs[layer.index] = out

        return after

    model.focus.mode, model.focus.watch = "dense", watch
    ids = torch.randint(0, 90, (2, tokens), generator=torch.Generator().manual_seed(1))
    model(ids, use_cache=False, **kwargs).logits.square().mean().backward()
    return seen[1], outputs[1]


def written_out(seen):
    """[B, Hq, T, T] logits of full attention."""
    repeat = seen.query.shape[1] // seen.key.shape[1]
    logits = seen.query @ seen.key.repeat_interleave(repeat, 1).mT * seen.options["scale"]
    if seen.options["softcap"] is not None:
        logits = seen.options["softcap"] * torch.tanh(logits / seen.options["softcap"])
    tokens = logits.shape[-1]
    return logits.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -float("inf"))


def decided(tokens):
    place = torch.arange(tokens)
    return (place[:, None] - place[None, :] > CONFIG.window) & (place[None, :] >= CONFIG.sinks)


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "GPT2"])
def test_masses_are_the_weights_of_full_attention(family, monkeypatch):
    monkeypatch.setattr("focus_retrofit.training.mass.ROWS", 16)  # several blocks
    seen, _ = watched(family)
    got = torch.cat([part for _, part in masses(seen, CONFIG.window, CONFIG.sinks)], 1)
    want = written_out(seen).softmax(-1).sum(1) * decided(seen.query.shape[2])
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_sensitivities_are_squares_of_the_logits_gradient():
    seen, out = watched("Llama")
    logits = written_out(seen).detach().requires_grad_()
    value = seen.value.repeat_interleave(logits.shape[1] // seen.value.shape[1], 1).detach()
    again = (logits.softmax(-1) @ value).transpose(1, 2)
    torch.testing.assert_close(again, out.detach(), atol=1e-5, rtol=1e-4)
    (slope,) = torch.autograd.grad(again, logits, out.grad)
    got = torch.cat([part for _, part in sensitivities(seen, out.detach(), out.grad, CONFIG.window, CONFIG.sinks)], 1)
    want = slope.square().sum(1) * decided(logits.shape[-1])
    torch.testing.assert_close(got / want.max(), want / want.max(), atol=1e-5, rtol=1e-3)


def test_packed_documents_and_padding_weigh_nothing_across():
    positions = torch.cat([torch.arange(25), torch.arange(15)]).expand(2, -1)
    seen, _ = watched("Llama", position_ids=positions)
    got = torch.cat([part for _, part in masses(seen, CONFIG.window, CONFIG.sinks)], 1)
    assert got[:, 25:, :25].abs().max() == 0
    assert got[:, 25:, 27:].abs().max() > 0


def test_mass_gradient_in_the_objective_is_that_of_the_layers_loss():
    config = FocusConfig(**{**CONFIG.to_dict(), "balance": "softmax"})  # potentials would be fitted anew below
    model = retrofit(BY_NAME["Llama"].make(), config).train()
    ids = torch.randint(0, 90, (2, 40), generator=torch.Generator().manual_seed(1))
    Objective("mass")(model, model.focus, {"input_ids": ids, "labels": ids}, 1).backward()
    mine = [p.grad.clone() for p in model.focus.trainable_parameters()]
    found = []
    model.focus.watch = found.append
    model.zero_grad()
    model(ids, use_cache=False)
    losses = []
    for seen in found:
        weight = written_out(seen).softmax(-1).sum(1) * decided(40)
        soft = model.focus.router(seen.index).logits(seen.hidden).softmax(-1)
        losses.append((1 - (weight * (soft @ soft.mT)).sum((1, 2)) / weight.sum((1, 2))).mean())
    torch.stack(losses).mean().backward()
    for a, b in zip(mine, model.focus.trainable_parameters(), strict=True):
        torch.testing.assert_close(a, b.grad, atol=1e-6, rtol=1e-4)
