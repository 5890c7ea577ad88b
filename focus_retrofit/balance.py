"""What spreads tokens over groups: potentials, fitted once and constant then, or the paper's Sinkhorn, which leaks."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def fit_potentials(scores: Tensor, start: Tensor, rounds: int = 200, tolerance: float = 1e-3) -> Tensor:
    """scores [N, K] -> b [K], so that softmax(scores + b) gives every group the same share of the tokens.

    Sinkhorn's column scaling to convergence: of these K numbers only, so that a token's assignment is its own.
    """
    potentials, count = start.clone(), scores.shape[1]
    for _ in range(rounds):
        shares = torch.softmax(scores + potentials, -1).mean(0)
        potentials = potentials - shares.clamp_min(1e-12).log() - math.log(count)
        if float((shares * count - 1).abs().max()) < tolerance:
            break
    return potentials - potentials.mean()


def sinkhorn(scores: Tensor, rounds: int, real: Tensor | None = None) -> Tensor:
    """scores [B, T, K] -> log assignments [B, T, K], each sequence balanced over its groups.

    A round normalises over the tokens of a group, then over the groups of a token. The sum over tokens includes later
    ones: an assignment depends on the future. `real` [B, T] leaves padding out.
    """
    logits = scores
    for _ in range(rounds):
        columns = logits if real is None else logits.masked_fill(~real[..., None], float("-inf"))
        logits = logits - columns.logsumexp(1, keepdim=True).nan_to_num(neginf=0.0)
        logits = logits.log_softmax(-1)
    return logits
