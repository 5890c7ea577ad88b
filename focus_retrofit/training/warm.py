"""A start better than chance: projections from PCA of the hidden states, centroids from balanced k-means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from focus_kernels import FocusError

from ..attention import Seen
from ..balance import fit_potentials
from ..controller import Focus

SPREAD = 3.0  # standard deviation of the group scores to begin with: tokens are sure of their group, not certain
ROUNDS = 10  # of balanced k-means after scikit-learn's
ENOUGH = 256  # tokens of a batch that PCA looks at, about: its cost grows with them, and neighbours are much alike
Loss = Callable[[Focus, dict[str, Tensor], Tensor], Tensor]  # of a batch, its inputs and labels


@torch.no_grad()
def warm_start(model: nn.Module, batches: Iterable[dict[str, Tensor]], *, seed: int = 0) -> None:
    """Set projections, centroids and potentials from a calibration text, read twice; memory does not grow with it.

    `batches`: what the model is called with (input_ids, position_ids, attention_mask), a list or anything that can be
    read again.
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import IncrementalPCA

    focus: Any = model.focus
    config, indices = focus.config, focus.layer_indices
    if config.num_groups < 2:
        raise FocusError("one group holds every token: there is nothing to start warm; use num_groups >= 2")
    pcas = {index: IncrementalPCA(n_components=config.group_dim) for index in indices}
    read(focus, batches, partial(_fit_pca, pcas), "PCA of hidden states")
    points: dict[int, list[np.ndarray]] = {index: [] for index in indices}
    read(focus, batches, partial(_project, pcas, points), "projecting")
    for index in tqdm(indices, desc="k-means", unit=" layers", leave=False):
        found = np.concatenate(points.pop(index))
        unit = found.std() or 1.0  # one scale for all axes: the larger ones say more
        projected = torch.from_numpy(found / unit).float()
        start = KMeans(config.num_groups, n_init=4, random_state=seed).fit(projected.numpy()).cluster_centers_
        centroids, potentials = balanced_kmeans(projected, torch.from_numpy(start).float(), config.tau)
        router = focus.router(index)
        axes = torch.from_numpy(np.ascontiguousarray(pcas[index].components_.T / unit))  # [d, d_g]
        router.projection.copy_(axes)
        router.centroids.copy_(centroids)
        # the mean that PCA takes off moves each group's score by a constant, as do potentials
        moved = torch.from_numpy(pcas[index].mean_).float() @ axes.float() @ centroids.T / config.tau
        router.potentials.copy_(potentials - moved if config.balance == "potentials" else torch.zeros_like(potentials))


def balanced_kmeans(points: Tensor, start: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """points [N, d], start [K, d] -> centroids [K, d] for scores points @ centroids.T / tau, and their potentials [K].

    Lloyd's rounds in which potentials keep the clusters' sizes even; centroids come scaled to scores of spread SPREAD.
    """
    centroids, potentials = start, points.new_zeros(len(start))
    for _ in range(ROUNDS):
        scores, scale = _scores(points, centroids)
        potentials = fit_potentials(scores, potentials)
        chosen = (scores + potentials).argmax(-1)
        sums = torch.zeros_like(centroids).index_add_(0, chosen, points)
        counts = torch.bincount(chosen, minlength=len(start))[:, None]
        centroids = torch.where(counts > 0, sums / counts.clamp_min(1), centroids)
    scores, scale = _scores(points, centroids)
    return centroids * scale * tau, fit_potentials(scores, potentials)


def _scores(points: Tensor, centroids: Tensor) -> tuple[Tensor, float]:
    scores = points @ (centroids - centroids.mean(0)).T
    scale = SPREAD / max(float(scores.std()), 1e-12)
    return scores * scale, scale


def _fit_pca(pcas: dict[int, Any], seen: Seen) -> None:
    tokens = _tokens(seen)
    tokens = tokens[:: max(len(tokens) // ENOUGH, 1)]
    if len(tokens) >= pcas[seen.index].n_components:
        pcas[seen.index].partial_fit(tokens)


def _project(pcas: dict[int, Any], points: dict[int, list[np.ndarray]], seen: Seen) -> None:
    points[seen.index].append(pcas[seen.index].transform(_tokens(seen)).astype(np.float32))


def _tokens(seen: Seen) -> np.ndarray:
    """[N, d] hidden states of real tokens."""
    hidden, real = seen.hidden.detach().float(), seen.routed.layout.real
    return (hidden.flatten(0, 1) if real is None else hidden[real.to(hidden.device)]).cpu().numpy()


def read(
    focus: Focus,
    batches: Iterable[dict[str, Tensor]],
    watch: Any,
    what: str,
    *,
    loss: Loss | None = None,
) -> None:
    """Run the model over a text, showing `watch` what each layer is given: as it is, without gradients, or by
    `loss`(focus, inputs, labels), which is differentiated down to the first layer."""
    model: Any = focus.model
    before, training = (focus.mode, focus.watch), model.training
    focus.mode, focus.watch = "dense", watch
    model.eval()
    count = 0
    if loss is not None:
        model.enable_input_require_grads()  # nothing else in a frozen model would ask for a gradient
    try:
        for batch in tqdm(batches, desc=what, unit=" batches", leave=False):
            inputs = {name: value.to(model.device) for name, value in batch.items()}
            labels = inputs.pop("labels", None)
            with torch.set_grad_enabled(loss is not None):
                if loss is None:
                    model.base_model(**inputs, use_cache=False)  # no logits are needed
                else:
                    loss(focus, inputs, labels).backward()
            count += 1
    finally:
        focus.mode, focus.watch = before
        model.train(training)
        if loss is not None:
            model.disable_input_require_grads()
    if not count:
        raise FocusError(f"{what}: the calibration text is empty, or it was an iterator that has been read already")
