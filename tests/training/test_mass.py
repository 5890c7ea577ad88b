"""The mass and sensitivity of pairs, against attention written out, and the loss over them against autograd."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_retrofit import FocusConfig, retrofit
from focus_retrofit.training.fit import plainly, scatter
from focus_retrofit.training.mass import gains, lost_mass, masses, sensitivities
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


def watched(family, tokens=40, mode="dense", config=CONFIG, **kwargs):
    """What layer 1 of a small model was given, its output, and the output's gradient for a random loss; mode 'hard' is
    with random groups."""
    model = retrofit(BY_NAME[family].make(), config).eval()
    model.enable_input_require_grads()
    seen, outputs = {}, {}

    def watch(layer):
        seen[layer.index] = layer
        if mode == "hard":
            plainly(layer)
            scatter(layer, config, layer.index)

        def after(out):
            out.retain_grad()
            outputs[layer.index] = out

        return after

    model.focus.mode, model.focus.watch = mode, watch
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


@pytest.mark.parametrize("k, match", [(1, "probe"), (2, "probe"), (2, "share")])
def test_gains_are_what_one_more_pair_changes(k, match):
    config = FocusConfig(**{**CONFIG.to_dict(), "top_k": k, "match": match, "temperature": 0.7})
    seen, out = watched("Llama", mode="hard", config=config)
    (got,) = (part for _, part in gains(seen, out.detach(), out.grad, CONFIG.window, CONFIG.sinks, match))
    logits, groups = written_out(seen), seen.routed.groups
    value = seen.value.repeat_interleave(logits.shape[1] // seen.value.shape[1], 1)
    keys = groups if match == "share" else groups[..., :1]
    matching = (groups[:, :, None, :, None] == keys[:, None, :, None, :]).flatten(3).any(-1)
    apart = decided(40) & ~matching  # [B, T, T]
    served = logits.masked_fill(apart[:, None], -float("inf"))
    weights = served.softmax(-1)
    now = weights @ value
    torch.testing.assert_close(now.transpose(1, 2), out, atol=1e-5, rtol=1e-4)
    slope = out.grad.transpose(1, 2)
    want = -(weights * (slope @ value.mT - (slope * now).sum(-1, keepdim=True))).sum(1)  # -d(loss)/d(logit)
    for row, i, j in apart.nonzero().tolist():
        more = served[row, :, i].clone()
        more[:, j] = logits[row, :, i, j]
        changed = (more.softmax(-1)[:, None] @ value[row])[:, 0] - now[row, :, i]
        want[row, i, j] = -(slope[row, :, i] * changed).sum()
    want = want * decided(40)
    assert (apart & decided(40)).any() and (decided(40) & ~apart).any()
    torch.testing.assert_close(got / want.abs().max(), want / want.abs().max(), atol=1e-5, rtol=1e-3)


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


@given(counts=st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any), padding=st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_unevenness_is_the_share_of_pairs_within_groups(counts, padding):
    router = retrofit(BY_NAME["Llama"].make(), CONFIG).focus.router(0)
    chosen = torch.tensor([group for group, count in enumerate(counts) for _ in range(count)] + [0] * padding)
    with torch.no_grad():
        router.projection.zero_()
        router.projection[:4, :4] = torch.eye(4) * 100
        router.centroids.copy_(torch.eye(4, router.centroids.shape[1]))
        router.potentials.copy_(torch.randn(4))
    hidden = torch.zeros(1, len(chosen), router.projection.shape[0])
    hidden[0, torch.arange(len(chosen)), chosen] = 1.0
    real = torch.arange(len(chosen))[None] < sum(counts)
    within = sum(count**2 for count in counts) / sum(counts) ** 2
    torch.testing.assert_close(router.unevenness(hidden, real), torch.tensor(4 * within - 1))


def test_the_balance_term_and_its_gradient_are_the_mean_over_layers():
    model = retrofit(BY_NAME["Llama"].make(), CONFIG).train()
    ids = torch.randint(0, 90, (2, 40), generator=torch.Generator().manual_seed(1))
    objective, seen = Objective("balance"), []
    loss = objective(model, model.focus, {"input_ids": ids, "labels": ids}, 1)
    model.focus.watch = seen.append
    model.eval()(ids, use_cache=False)  # with the potentials that the step left
    want = torch.stack([model.focus.router(layer.index).unevenness(layer.hidden) for layer in seen]).mean()
    torch.testing.assert_close(objective.values["balance"], want, atol=1e-5, rtol=1e-4)
    loss.backward()
    parameters = model.focus.trainable_parameters()
    for parameter, slope in zip(parameters, torch.autograd.grad(want, parameters), strict=True):
        assert slope.abs().max() > 0
        torch.testing.assert_close(parameter.grad, slope, atol=1e-6, rtol=1e-4)
