"""What is learned in a layer: a projection, the centroids, their potentials, and a temperature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

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

    def __init__(self, hidden_size: int, config: FocusConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = config
        self.fitting, self.fitted = False, 0  # whether potentials are being fitted, and on how many batches they were
        self.batch: Tensor | None = None  # potentials of the batch that is being trained on, [K]
        projection = torch.randn(hidden_size, config.group_dim, generator=generator) * hidden_size**-0.5
        centroids = torch.randn(config.num_groups, config.group_dim, generator=generator) * config.group_dim**-0.5
        self.projection = nn.Parameter(projection)  # [d, d_g]
        self.centroids = nn.Parameter(centroids)  # [K, d_g]
        self.register_buffer("potentials", torch.zeros(config.num_groups))
        if config.temperature == "learned":
            self.temperature = nn.Parameter(torch.ones(()))
        elif config.temperature == "input":
            self.temperature = nn.Parameter(torch.zeros(hidden_size))

    potentials: Tensor

    def route(self, hidden: Tensor, layout: Layout) -> Routing:
        """hidden [B, T, d] -> the groups of its tokens, on the layout's device."""
        real = None if layout.real is None else layout.real.to(self.projection.device)
        logits = self.logits(hidden, real)
        return Routing(layout, logits, self.groups(logits).to(layout.device), self.token_temperature(hidden))

    def logits(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """hidden [B, T, d] -> balanced group scores [B, T, K]; `real` [B, T] marks what is not padding.

        Their softmax is the soft assignment, their k largest are the token's groups.
        """
        with torch.autocast(hidden.device.type, enabled=False):
            projected = hidden.to(self.projection.device, torch.float32) @ self.projection.float()
            scores = projected @ self.centroids.float().T / self.config.tau
        if self.config.balance == "sinkhorn":
            return sinkhorn(scores, self.config.sinkhorn_rounds, real)
        return scores + self._potentials(scores, real) if self.config.balance == "potentials" else scores

    @property
    def learning(self) -> bool:
        """Whether this forward pass is one of training, as of batch normalisation: `train()`, with gradients on."""
        return self.training and torch.is_grad_enabled() and self.projection.requires_grad

    @torch.no_grad()
    def _potentials(self, scores: Tensor, real: Tensor | None) -> Tensor:
        """What is saved; in training the batch's own, which what is saved then follows.

        The batch's stay until the model's next forward pass: a checkpointed layer that runs again must route the same.
        """
        if not (self.fitting or self.learning):
            return self.potentials
        if self.fitting or self.batch is None:
            known = scores.detach().flatten(0, 1) if real is None else scores.detach()[real]
            if self.learning and not self.fitting:
                known = from_all_ranks(known)
            fitted = fit_potentials(known, self.potentials)
            if self.fitting:
                self.fitted += 1
                self.potentials += (fitted - self.potentials) / self.fitted  # the mean over batches
                return self.potentials
            self.batch = fitted
            fresh = not bool(self.potentials.any())
            self.potentials += (fitted - self.potentials) * (1 if fresh else 1 - self.config.balance_decay)
        return self.batch

    def groups(self, logits: Tensor) -> Tensor:
        """logits [B, T, K] -> the k best groups of each token [B, T, k], best first."""
        return logits.detach().topk(self.config.top_k, dim=-1).indices

    def layer_temperature(self) -> float | Tensor | None:
        """The layer's temperature, clipped; None is exactly 1. For 'input' see `token_temperature`."""
        config = self.config
        if config.temperature == "learned":
            return self.temperature.float().clamp(config.temperature_min, config.temperature_max)
        return config.temperature if isinstance(config.temperature, int | float) else None

    def token_temperature(self, hidden: Tensor) -> Tensor | None:
        """[B, T], for temperature='input': 1 + h·w, clipped; of each token by itself, so that nothing leaks."""
        config = self.config
        if config.temperature != "input":
            return None
        with torch.autocast(hidden.device.type, enabled=False):
            shift = hidden.to(self.temperature.device, torch.float32) @ self.temperature.float()
        return (1 + shift).clamp(config.temperature_min, config.temperature_max)
