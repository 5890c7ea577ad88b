"""A start better than chance: planted directions and clusters are found, and fitting keeps what matters."""

from __future__ import annotations

import pytest
import torch

from focus_kernels import FocusError
from focus_retrofit.training import fit_routers, warm_start
from focus_retrofit.training.fit import fit_router
from focus_retrofit.training.warm import balanced_kmeans

from .tiny import model, windows


def batches(count=6, size=2, **options):
    data = windows(**options)
    return [{name: torch.stack([data[2 * n + i][name] for i in range(size)]) for name in data[0]} for n in range(count)]


def test_balanced_kmeans_finds_planted_clusters_of_equal_size():
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(4, 5, generator=generator) * 4
    truth = torch.arange(400) % 4
    points = centers[truth] + torch.randn(400, 5, generator=generator) * 0.3
    centroids, potentials = balanced_kmeans(points, centers + torch.randn(4, 5, generator=generator), 0.1)
    found = (points @ centroids.T / 0.1 + potentials).argmax(-1)
    assert len({(int(a), int(b)) for a, b in zip(truth, found, strict=True)}) == 4


def test_balanced_kmeans_splits_a_large_cluster():
    generator = torch.Generator().manual_seed(0)
    points = torch.cat([torch.randn(380, 3, generator=generator), 20 + torch.randn(20, 3, generator=generator)])
    centroids, potentials = balanced_kmeans(points, points[[0, 1, 2, 399]], 0.1)
    shares = torch.bincount((points @ centroids.T / 0.1 + potentials).argmax(-1), minlength=4) / 400
    assert shares.max() < 0.4


@pytest.mark.parametrize("family", ["Llama", "GPT2", "Gemma2"])
def test_a_warm_start_is_the_leading_directions_balanced(family):
    retrofitted, data = model(family, group_dim=3), batches()
    warm_start(retrofitted, data)
    seen = {}

    def watch(layer):
        seen.setdefault(layer.index, []).append(layer.hidden.detach().flatten(0, 1))

    retrofitted.focus.mode, retrofitted.focus.watch = "dense", watch
    with torch.no_grad():
        for batch in data:
            retrofitted(batch["input_ids"], position_ids=batch["position_ids"], use_cache=False)
    for index in retrofitted.focus.layer_indices:
        router, hidden = retrofitted.focus.router(index), torch.cat(seen[index]).double()
        centred = hidden - hidden.mean(0)
        most = torch.linalg.svdvals(centred)[:3].square().sum()
        mine = torch.linalg.qr(router.projection.detach().double()).Q
        assert (centred @ mine).square().sum() > 0.85 * most  # though PCA was fed in parts, and not with every token
        shares = torch.bincount(router.logits(hidden[None].float())[0].argmax(-1), minlength=4) / len(hidden)
        assert shares.max() < 0.45


def test_a_warm_start_needs_a_text_and_groups():
    with pytest.raises(FocusError, match="calibration text is empty"):
        warm_start(model(), [])
    with pytest.raises(FocusError, match="nothing to start warm"):
        warm_start(model(num_groups=1, top_k=1), batches())


@pytest.mark.parametrize("weights", ["mass", "sensitivity", "gain"])
def test_fitting_keeps_more_in_every_layer_and_leaves_the_model(weights):
    retrofitted, data = model(), batches()
    frozen = {name: tensor.clone() for name, tensor in retrofitted.state_dict().items()}
    retrofitted.focus.balance(*(batch["input_ids"] for batch in data))
    start = fit_routers(retrofitted, data, weights=weights, steps=40, lr=1e-12, balance=0)
    end = fit_routers(retrofitted, data, weights=weights, steps=80, lr=1e-2, balance=0)
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
        fit_routers(retrofitted, data, weights="mass", steps=80, lr=1e-2, balance=balance)
        found = []
        retrofitted.focus.mode, retrofitted.focus.watch = "dense", found.append
        for batch in data:
            retrofitted(batch["input_ids"], use_cache=False)
        shares = [torch.stack([(x.routed.groups[..., 0] == g).float().mean(1) for g in range(4)]) for x in found]
        uneven.append(torch.stack(shares).square().sum(1).mean())
    assert uneven[1] < uneven[0]


def test_a_router_finds_planted_groups():
    """Tokens attend only to their own kind: fitting must tell the kinds apart."""
    router = model(group_dim=4).focus.router(0)
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(0, 4, (6, 60), generator=generator)
    directions = torch.randn(4, router.projection.shape[0], generator=generator)
    shown = []
    for row in kinds:
        hidden = directions[row] + 0.1 * torch.randn(60, router.projection.shape[0], generator=generator)
        shown.append((hidden[None].half(), (row[:, None] == row[None, :]).half()[None], None))
    lost = fit_router(router, shown, 400, 1e-2, 0.0, generator)
    found = torch.cat([router.logits(hidden.float())[0].argmax(-1) for hidden, _, _ in shown])
    assert lost < 0.1
    together = torch.zeros(4, 4).index_put_((kinds.flatten(), found), torch.ones(360), accumulate=True)
    assert together.amax(1).sum() > 0.95 * 360 and len(set(together.argmax(1).tolist())) == 4


@pytest.mark.parametrize("weights", ["mass", "gain"])
def test_less_memory_reads_the_text_more_often_and_ends_the_same(weights):
    found = []
    for memory in (8e9, 3e5):
        retrofitted = model()
        fit_routers(retrofitted, batches(), weights=weights, steps=5, memory=memory)
        found.append(retrofitted.focus.tensors())
    assert all(torch.equal(found[1][name], tensor) for name, tensor in found[0].items())
    with pytest.raises(FocusError, match="one layer's weights"):
        fit_routers(model(), batches(), memory=10.0)
