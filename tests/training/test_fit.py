"""Fitting keeps the pairs that matter: what is kept is the sum over pairs, planted groups are found, later rounds read
with the routers of earlier ones."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_kernels import FocusError
from focus_retrofit.training import fit_routers
from focus_retrofit.training.fit import _keeper, _Kept, served_loss
from focus_retrofit.training.mass import masses
from focus_retrofit.training.search import Search, _kept, fit_router
from focus_retrofit.training.warm import read

from .tiny import batches, model


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 20), groups=st.integers(1, 5), k=st.integers(1, 3), further=st.sampled_from([0.0, 0.5]))
def test_what_is_kept_and_its_gradient_are_those_of_the_pairs_written_out(tokens, groups, k, further):
    k = min(k, groups)
    generator = torch.Generator().manual_seed(tokens)
    logits = torch.randn(2, groups, tokens, generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(tokens, tokens, generator=generator, dtype=torch.float64).tril(-1)
    mine = _kept(logits, weights, k, further)
    soft, left, looked = logits.softmax(1), logits, 0.0
    for count in ([1.0] * k + [further])[:groups]:
        looked = looked + count * left.softmax(1)
        left = left.masked_fill(left == left.amax(1, keepdim=True), -1e30)
    pairs = torch.einsum("rki,ij,rkj->r", looked, weights, soft)
    torch.testing.assert_close(mine, pairs)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), logits, retain_graph=True)[0] for x in (mine, pairs)))


@pytest.mark.parametrize("weights", ["mass", "sensitivity", "gain"])
def test_fitting_keeps_more_in_every_layer_and_leaves_the_model(weights):
    retrofitted, data = model(), batches()
    frozen = {name: tensor.clone() for name, tensor in retrofitted.state_dict().items()}
    retrofitted.focus.balance(*(batch["input_ids"] for batch in data))
    how = {"balance": 0, "starts": 1, "decay": 0}
    start = fit_routers(retrofitted, data, weights=weights, how=Search(steps=1, lr=1e-12, **how))
    end = fit_routers(retrofitted, data, weights=weights, how=Search(steps=150, lr=1e-2, **how))
    assert all(end[index] < start[index] for index in start)
    assert all(torch.equal(tensor, frozen[name]) for name, tensor in retrofitted.state_dict().items())
    assert retrofitted.focus.mode == "hard" and retrofitted.focus.watch is None
    assert all(p.grad is None for p in retrofitted.focus.trainable_parameters())
    whole = torch.cat([batch["input_ids"] for batch in data])
    retrofitted.eval()(whole, use_cache=False)
    assert all(max(line.shares) < 0.7 for line in retrofitted.focus.report().layers)


def test_balance_weighs_against_uneven_groups_in_each_text():
    uneven = []
    for balance in (0, 3.0):
        retrofitted, data = model(), batches()
        fit_routers(retrofitted, data, weights="mass", how=Search(steps=80, lr=1e-2, balance=balance))
        found = []
        retrofitted.focus.mode, retrofitted.focus.watch = "dense", found.append
        for batch in data:
            retrofitted(batch["input_ids"], use_cache=False)
        shares = [torch.stack([(x.routed.groups[..., 0] == g).float().mean(1) for g in range(4)]) for x in found]
        uneven.append(torch.stack(shares).square().sum(1).mean())
    assert uneven[1] < uneven[0]


def planted(router, count=6, tokens=60):
    """Texts whose tokens are of four kinds and look only at their own; and the kinds."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(0, 4, (count, tokens), generator=generator)
    directions = torch.randn(4, router.projection.shape[0], generator=generator)
    noise = 0.1 * torch.randn(count, tokens, directions.shape[1], generator=generator)
    same = (kinds[:, :, None] == kinds[:, None, :]).float().tril(-1)
    return list(zip(directions[kinds] + noise, same, strict=True)), kinds


@pytest.mark.parametrize("balance", ["potentials", "sinkhorn"])
def test_a_router_finds_planted_groups(balance):
    router = model(group_dim=4, balance=balance).focus.router(0)
    texts, kinds = planted(router)
    lost = fit_router(router, texts, Search(balance=0.0, starts=4), torch.Generator().manual_seed(0))
    found = torch.cat([router.logits(hidden[None])[0].argmax(-1) for hidden, _ in texts])
    assert lost < 0.1
    together = torch.zeros(4, 4).index_put_((kinds.flatten(), found), torch.ones(360), accumulate=True)
    assert together.amax(1).sum() > 0.95 * 360 and len(set(together.argmax(1).tolist())) == 4


def test_the_best_of_several_starts_stays_and_the_router_at_hand_is_one_of_them():
    router = model(group_dim=4).focus.router(0)
    texts, _ = planted(router)
    fit_router(router, texts, Search(balance=0.0, starts=4), torch.Generator().manual_seed(0))
    good = router.scores(texts[0][0]).softmax(-1)
    lost = fit_router(router, texts, Search(steps=1, lr=1e-12, starts=5), torch.Generator().manual_seed(7))
    assert lost < 0.1
    torch.testing.assert_close(router.scores(texts[0][0]).softmax(-1), good)


def test_a_second_choice_is_learned_without_harm_to_the_first():
    """Tokens look at their own kind, and a little at the next: with k = 2 all of it can be kept."""
    kept = []
    for further in (0.0, 1.0):
        router = model(group_dim=4).focus.router(0)
        texts, kinds = planted(router)
        next_kind = ((kinds[:, :, None] + 1) % 4 == kinds[:, None, :]).float().tril(-1)
        texts = [(hidden, 3 * own + other) for (hidden, own), other in zip(texts, next_kind, strict=True)]
        fit_router(router, texts, Search(balance=0.0, next_choice=further), torch.Generator().manual_seed(0))
        logits = [10 * router.logits(hidden[None]).detach().mT.double() for hidden, _ in texts]
        sums = [
            sum(float(_kept(x, w.double(), k, 0.0)) for x, (_, w) in zip(logits, texts, strict=True)) for k in (1, 2)
        ]
        kept.append([s / sum(float(w.sum()) for _, w in texts) for s in sums])
    assert kept[1][0] > kept[0][0] - 0.02
    assert kept[1][1] > kept[0][1] + 0.05


@pytest.mark.parametrize("weights", ["mass", "gain"])
def test_what_memory_cannot_hold_is_kept_in_files_and_fits_the_same(weights):
    found = []
    for memory in (8e9, 1e4):
        retrofitted = model()
        fit_routers(retrofitted, batches(), weights=weights, rounds=2, how=Search(steps=5), memory=memory)
        found.append(retrofitted.focus.tensors())
    assert all(torch.equal(found[1][name], tensor) for name, tensor in found[0].items())


def test_later_rounds_read_with_the_routers_of_earlier_ones(monkeypatch):
    retrofitted, data, seen = model(), batches(), []

    def note(focus, parts, keeper, what, loss):
        def watch(layer):
            after = keeper(layer)
            seen.append((what, layer.routed.groups, focus.router(layer.index).route(layer.hidden, layer.routed.layout)))
            return after

        read(focus, parts, watch, what, loss=loss)

    monkeypatch.setattr("focus_retrofit.training.fit.read", note)
    fit_routers(retrofitted, data, rounds=2, how=Search(steps=20))
    per_round = [[torch.equal(a, b.groups) for what, a, b in seen if what.endswith(end)] for end in "12"]
    assert len(per_round[0]) == len(per_round[1]) == 3 * len(retrofitted.focus.layer_indices)
    assert not any(per_round[0]) and all(per_round[1])


def test_gains_are_those_of_the_text_and_of_the_base_in_proportion():
    retrofitted, data = model(), batches()[:1]
    focus, found = retrofitted.focus, []
    for trust in (0.0, 1.0, 0.75):
        kept = _Kept(focus.layer_indices, 1e9)
        read(focus, data, _keeper(focus, kept, "gain", 0), "reading", loss=partial(served_loss, trust=trust))
        found.append([kept.texts(index)[0][1] for index in focus.layer_indices])
    for text, base, both in zip(*found, strict=True):
        assert not torch.allclose(text, base)
        torch.testing.assert_close(both, 0.25 * text + 0.75 * base, atol=2e-2 * float(text.abs().max()), rtol=0)


def test_the_base_asks_for_nothing_where_it_is_what_is_served():
    (batch, *_), served = batches(), model(num_groups=4, top_k=4)
    labels, inputs = batch["labels"], {"input_ids": batch["input_ids"]}
    loss = [served_loss(served.focus, inputs, labels, trust).item() for trust in (0.0, 0.8, 1.0)]
    assert abs(loss[2]) < 1e-3 * loss[0] and loss[1] == pytest.approx(0.2 * loss[0], rel=1e-3)


def test_a_loss_in_slices_is_that_of_the_whole_text(monkeypatch):
    retrofitted, (batch, *_) = model(), batches()
    labels, inputs, found = batch["labels"], {"inputs_embeds": None}, []
    for size in (10_000, 7):
        monkeypatch.setattr("focus_retrofit.training.fit.SLICE", size)
        inputs["inputs_embeds"] = retrofitted.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
        loss = served_loss(retrofitted.focus, inputs, labels, 0.4)
        found.append((loss.detach(), *torch.autograd.grad(loss, inputs["inputs_embeds"])))
    for whole, sliced in zip(*found, strict=True):
        torch.testing.assert_close(whole, sliced, rtol=1e-4, atol=1e-6)


def test_padding_is_left_out_of_what_is_kept():
    retrofitted, (batch, *_) = model(), batches(size=1)
    ids = batch["input_ids"]
    padded = torch.cat([torch.zeros_like(ids[:, :7]), ids], 1)
    mask = torch.cat([torch.zeros_like(ids[:, :7]), torch.ones_like(ids)], 1)
    kept = []
    for inputs in ({"input_ids": ids}, {"input_ids": padded, "attention_mask": mask}):
        kept.append(_Kept(retrofitted.focus.layer_indices, 1e9))
        read(retrofitted.focus, [inputs], _keeper(retrofitted.focus, kept[-1], "mass", None), "reading")
    for index in retrofitted.focus.layer_indices:
        for plain, other in zip(*(k.texts(index)[0] for k in kept), strict=True):
            assert plain.shape == other.shape and plain.shape[0] == ids.shape[1]
            torch.testing.assert_close(plain, other, atol=2e-2, rtol=2e-2)


def test_pairs_are_kept_where_they_were():
    retrofitted, (batch, *_) = model(), batches()
    kept, wanted = _Kept(retrofitted.focus.layer_indices, 1e9), {}
    keeper, config = _keeper(retrofitted.focus, kept, "mass", None), retrofitted.focus.config

    def watch(seen):
        wanted[seen.index] = torch.cat([part for _, part in masses(seen, config.window, config.sinks)], 1)
        keeper(seen)

    read(retrofitted.focus, [{"input_ids": batch["input_ids"]}], watch, "reading")
    for index, weights in wanted.items():
        got = torch.stack([found for _, found in kept.texts(index)])
        torch.testing.assert_close(got, weights.float(), atol=1e-2, rtol=1e-2)


def test_an_empty_text_is_named():
    with pytest.raises(FocusError, match="calibration text is empty"):
        fit_routers(model(), [])
    with pytest.raises(FocusError, match="weights is 'much'"):
        fit_routers(model(), batches(), weights="much")
