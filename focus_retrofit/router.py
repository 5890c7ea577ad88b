"""What is learned in a layer: a projection, the centroids, their potentials, and a temperature."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from focus_kernels import FocusError

from .adjunct import Adjunct
from .balance import fit_potentials, from_all_ranks, sinkhorn
from .config import FocusConfig
from .masks import Layout


@dataclass
class Routing:
    """What a router says of a chunk of tokens, and where they stand."""

    layout: Layout
    logits: Tensor  # [B, T, K], their softmax is the soft assignment
    groups: Tensor  # [B, T, k]
    per_token: Tensor | None  # temperatures [B, T], for temperature='input'


class Router(Adjunct):
    """Scores tokens against a layer's centroids, in fp32 whatever the model computes in."""

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        config: FocusConfig,
        layer: int,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self.config, self.layer = config, layer
        self.fitting, self.fitted = False, 0  # whether potentials are being fitted, and on how many batches they were
        self.batch: Tensor | None = None  # potentials of the batch that is being trained on, [K]
        self.learning = False
        projection, centroids = draw(hidden_size, config, generator)
        self.projection = nn.Parameter(projection)  # [d, d_g]
        self.centroids = nn.Parameter(centroids)  # [K, d_g]
        self.register_buffer("potentials", torch.zeros(config.num_groups))
        if config.temperature == "learned":
            self.temperature = nn.Parameter(torch.ones(()))
        elif config.temperature == "heads":
            self.temperature = nn.Parameter(torch.ones(heads))
        elif config.temperature == "input":
            self.temperature = nn.Parameter(torch.zeros(hidden_size))

    potentials: Tensor

    @property
    def top_k(self) -> int:
        """Groups that a query looks into here."""
        return self.config.k_of(self.layer)

    def route(self, hidden: Tensor, layout: Layout) -> Routing:
        """hidden [B, T, d] -> the groups of its tokens, on the layout's device."""
        real = None if layout.real is None else layout.real.to(self.projection.device)
        logits = self.logits(hidden, real)
        return Routing(layout, logits, self.groups(logits).to(layout.device), self.token_temperature(hidden))

    def logits(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """hidden [B, T, d] -> balanced group scores [B, T, K]; `real` [B, T] marks what is not padding.

        Their softmax is the soft assignment, their k largest are the token's groups.
        """
        scores = self.scores(hidden)
        if self.config.balance == "sinkhorn":
            return sinkhorn(scores, self.config.sinkhorn_rounds, real)
        return scores + self._potentials(scores, real) if self.config.balance == "potentials" else scores

    def unevenness(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """What uneven groups cost once potentials are those that are saved: K times the share of pairs that are within
        groups, less 1; of soft assignments, mean over rows."""
        scores = self.scores(hidden)
        if self.config.balance == "sinkhorn":
            soft = sinkhorn(scores, self.config.sinkhorn_rounds, real).softmax(-1)
        else:
            soft = (scores + self.potentials).softmax(-1)
        if real is not None:
            soft = soft * real.to(soft)[..., None]
        counts = soft.sum(1)  # [B, K]
        shares = counts / counts.sum(-1, keepdim=True).clamp_min(1)
        return (self.config.num_groups * shares.square().sum(-1) - 1).mean()

    def scores(self, hidden: Tensor) -> Tensor:
        """hidden [B, T, d] -> how well each centroid fits [B, T, K], before any balance."""
        projection = self.projection
        with _without_autocast(hidden.device.type):
            projected = hidden.to(projection.device, torch.float32) @ projection.float()
            return projected @ self.centroids.float().T / self.config.tau

    def begin(self) -> None:
        """A forward pass of the model begins: it is one of training, as for batch normalisation, in `train()` with
        gradients on. Asked here, not in the layer: reentrant checkpointing turns them off on the way."""
        self.batch = None
        self.learning = self.training and torch.is_grad_enabled() and self.projection.requires_grad

    def _potentials(self, scores: Tensor, real: Tensor | None) -> Tensor:
        """What is saved; in training the batch's own, which what is saved then follows.

        The batch's stay until the model's next forward pass: a checkpointed layer that runs again must route the same.
        """
        if not (self.fitting or (self.learning and self.training)):
            return self.potentials
        if self.batch is not None and not self.fitting:
            return self.batch
        with torch.no_grad():
            known = scores.flatten(0, 1) if real is None else scores[real]
            fitted = fit_potentials(known if self.fitting else from_all_ranks(known), self.potentials)
            if self.fitting:
                self.fitted += 1
                self.potentials += (fitted - self.potentials) / self.fitted  # the mean over batches
                return self.potentials
            fresh = not bool(self.potentials.any())
            self.potentials += (fitted - self.potentials) * (1 if fresh else 1 - self.config.balance_decay)
        self.batch = fitted
        return fitted

    def groups(self, logits: Tensor) -> Tensor:
        """logits [B, T, K] -> the k best groups of each token [B, T, k], best first."""
        return logits.detach().topk(self.top_k, dim=-1).indices

    def layer_temperature(self) -> float | Tensor | None:
        """The layer's temperature, or those of its query heads [Hq], clipped; None is exactly 1. For 'input' see
        `token_temperature`."""
        config = self.config
        if config.temperature == "heads":
            return self.temperature.float().clamp(config.temperature_min, config.temperature_max)
        if config.temperature == "learned":
            if not torch.is_grad_enabled():
                return min(max(float(self.temperature), config.temperature_min), config.temperature_max)
            return self.temperature.float().clamp(config.temperature_min, config.temperature_max)
        return config.temperature if isinstance(config.temperature, int | float) else None

    def token_temperature(self, hidden: Tensor) -> Tensor | None:
        """[B, T], for temperature='input': 1 + h·w, clipped; of each token by itself, so that nothing leaks."""
        config = self.config
        if config.temperature != "input":
            return None
        with _without_autocast(hidden.device.type):
            shift = hidden.to(self.temperature.device, torch.float32) @ self.temperature.float()
        return (1 + shift).clamp(config.temperature_min, config.temperature_max)


def draw(hidden_size: int, config: FocusConfig, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """A projection [d, d_g] and centroids [K, d_g] to begin with."""
    projection = torch.randn(hidden_size, config.group_dim, generator=generator) * hidden_size**-0.5
    centroids = torch.randn(config.num_groups, config.group_dim, generator=generator) * config.group_dim**-0.5
    return projection, centroids


def _without_autocast(device: str) -> AbstractContextManager[object]:
    """Routers compute in fp32; to say so costs more than it does, where it changes nothing."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def router_tensors(routers: nn.ModuleDict) -> dict[str, Tensor]:
    """Parameters and buffers of all routers, 'layers.<number>.<name>'."""
    names = {**dict(routers.named_parameters()), **dict(routers.named_buffers())}
    return {f"layers.{name}": tensor.detach() for name, tensor in sorted(names.items())}


@torch.no_grad()
def load_routers(routers: nn.ModuleDict, tensors: Mapping[str, Tensor]) -> None:
    """Put tensors of `router_tensors` in place; names and shapes must be the same."""
    own = router_tensors(routers)
    wrong = [f"{name} is missing" for name in own if name not in tensors]
    wrong += [f"{name} is not part of this model" for name in tensors if name not in own]
    wrong += [
        f"{name} is {list(tensors[name].shape)}, the model wants {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if wrong:
        raise FocusError("the adapter does not fit the model: " + "; ".join(wrong))
    for name, tensor in own.items():
        tensor.copy_(tensors[name])
