"""A start better than chance: planted directions and clusters are found."""

from __future__ import annotations

import pytest
import torch

from focus_kernels import FocusError
from focus_retrofit.training import warm_start
from focus_retrofit.training.warm import balanced_kmeans

from .tiny import batches, model


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
