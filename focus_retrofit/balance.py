"""What spreads tokens over groups: potentials, fitted once and constant then, or the paper's Sinkhorn, which leaks."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def fit_potentials(scores: Tensor, start: Tensor, rounds: int = 200, tolerance: float = 1e-3) -> Tensor:
    """scores [..., N, K] -> b [..., K], so that softmax(scores + b) gives every group the same share of the tokens.

    Sinkhorn's column scaling to convergence: of these K numbers only, so that a token's assignment is its own.
    """
    potentials, count = start.clone(), scores.shape[-1]
    columns = scores.mT.contiguous()  # [..., K, N]: a softmax over few groups is fast only across tokens
    for _ in range(rounds if scores.shape[-2] else 0):
        shares = torch.softmax(columns + potentials[..., None], -2).mean(-1)
        potentials = potentials - shares.clamp_min(1e-12).log() - math.log(count)
        if float((shares * count - 1).abs().max()) < tolerance:
            break
    return potentials - potentials.mean(-1, keepdim=True)


def from_all_ranks(scores: Tensor) -> Tensor:
    """scores [N, K] of this process -> those of all processes of a distributed run, in order of their ranks."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return scores
    ranks = torch.distributed.get_world_size()
    if ranks == 1:
        return scores
    count = torch.tensor([scores.shape[0]], device=scores.device)
    counts = [torch.zeros_like(count) for _ in range(ranks)]
    torch.distributed.all_gather(counts, count)
    most = max(int(n) for n in counts)
    padded = torch.nn.functional.pad(scores, (0, 0, 0, most - scores.shape[0])).contiguous()
    parts = [torch.empty_like(padded) for _ in range(ranks)]
    torch.distributed.all_gather(parts, padded)
    return torch.cat([part[: int(n)] for part, n in zip(parts, counts, strict=True)])


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
