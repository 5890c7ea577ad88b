"""The paper's Sinkhorn balancing, kept for comparison: it spreads a sequence's tokens over the groups, and leaks."""

from __future__ import annotations

from torch import Tensor


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
