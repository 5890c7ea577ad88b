"""Clusters of queries and keys, found by online k-means: the Routing Transformer (Roy et al., 2020).

There each cluster takes its best tokens of the whole sequence, which would let later tokens push earlier ones out; here
a query sees the keys of its own cluster, whatever their number, so the density is what k-means makes of it. There
queries and keys are normalised as the model learns; in a frozen model they lie apart, so each loses its own mean first,
or clusters would tell queries from keys and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from tqdm.auto import tqdm

from focus_kernels import FocusError

from .base import Rival, Text
from .reading import read_layers

DECAY = 0.9
ROUNDS = 5  # of assignment and update for each window


@dataclass
class Routing(Rival):
    """As many clusters for each head as the budget asks for: 1 / share."""

    name = "routing"
    title = "k-means clusters"
    what = "clusters by online k-means"
    learns = True
    centroids: dict[int, Tensor] = field(default_factory=dict)  # [Hq, clusters, D]
    means: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # of queries [Hq, 1, D] and keys [Hkv, 1, D]

    @property
    def clusters(self) -> int:
        return max(round(1 / self.share), 1)

    def chosen(self, text: Text) -> Tensor:
        if text.layer not in self.centroids:
            raise FocusError(f"layer {text.layer} has no clusters yet: call prepare() with training text")
        of_queries, of_keys = self._assigned(text)
        return of_queries[:, :, None] == of_keys[:, None, :]

    def _points(self, text: Text) -> tuple[Tensor, Tensor]:
        """Queries and keys [Hq, n, D] on the unit sphere, each about its mean."""
        pairs = zip((text.query, text.key), self.means[text.layer], strict=True)
        query, key = (normalize(x.float() - mean, dim=-1) for x, mean in pairs)
        return query, key.repeat_interleave(text.repeat, 0)

    def _assigned(self, text: Text) -> tuple[Tensor, Tensor]:
        centroids = self.centroids[text.layer].transpose(1, 2)
        of_queries, of_keys = ((points @ centroids).argmax(-1) for points in self._points(text))
        return of_queries, of_keys

    def prepare(self, model: Any, windows: list[Tensor]) -> None:
        generator = torch.Generator().manual_seed(0)

        def look(text: Text) -> None:
            query, key = (x.float().mean(1, keepdim=True) for x in (text.query, text.key))
            if text.layer not in self.centroids:
                self.means[text.layer] = query, key
                chosen = torch.randperm(text.tokens, generator=generator)[: self.clusters]
                self.centroids[text.layer] = self._points(text)[1][:, chosen].clone()
            old = self.means[text.layer]
            self.means[text.layer] = old[0].lerp(query, 1 - DECAY), old[1].lerp(key, 1 - DECAY)
            for _ in range(ROUNDS):
                self._update(text)

        read_layers(model, tqdm(windows, desc=self.what, unit=" windows", leave=False), look)

    def state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for layer, (query, key) in self.means.items():
            parts = {"centroids": self.centroids[layer], "query": query, "key": key}
            found |= {f"{layer}.{name}": x.contiguous() for name, x in parts.items()}
        return found

    def load_state(self, state: dict[str, Tensor]) -> None:
        for name, x in state.items():
            if name.endswith(".centroids"):
                layer = name.partition(".")[0]
                self.centroids[int(layer)] = x
                self.means[int(layer)] = state[f"{layer}.query"], state[f"{layer}.key"]

    def _update(self, text: Text) -> None:
        """Centroids move towards the mean of the queries and keys that they hold."""
        centroids = self.centroids[text.layer]
        total = torch.zeros_like(centroids)
        for points, assigned in zip(self._points(text), self._assigned(text), strict=True):
            total.scatter_add_(1, assigned[..., None].expand_as(points), points)
        held = total.square().sum(-1, keepdim=True) > 0
        moved = normalize(DECAY * centroids + (1 - DECAY) * normalize(total, dim=-1), dim=-1)
        self.centroids[text.layer] = torch.where(held, moved, centroids)
