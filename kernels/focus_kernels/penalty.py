"""A mask inside the dot product: a few extra dimensions in which unwanted pairs get a logit of -BIG.

q'.k' = q.k - BIG * <a_i, b_j>; where <a_i, b_j> is 0 nothing is added, so wanted pairs keep every bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .plan import multi_hot
from .problem import Problem

BIG = 30000.0  # after the scale; exp(-BIG) is 0 and its root over the scale fits fp16


def strength(scale: float) -> float:
    """The value to put on each side so that one shared dimension costs BIG."""
    return (BIG / scale) ** 0.5


def band_sides(groups: Tensor, problem: Problem, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[n, K] query and key sides that drop matching pairs (and sink keys) from the band: they are in the buckets."""
    hot = multi_hot(groups, problem.num_groups, dtype) * strength(scale)
    query, key = -hot, hot.clone()
    query[: problem.sinks] = 0  # sink queries find all their keys in the band
    key[: problem.sinks] = strength(scale)
    return query, key


def bucket_sides(
    groups: Tensor, rows: Tensor, below: int, sinks: int, problem: Problem, scale: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """[M, below] sides for a bucket whose rows (after `sinks`) are its keys: a pair that shares several groups survives
    only in the first of them, and the sinks only in a query's first group."""
    hot = multi_hot(groups[rows], problem.num_groups, dtype)[:, :below] * strength(scale)
    key = hot.clone()
    key[:sinks] = strength(scale)
    return -hot, key


def widen(tensor: Tensor, side: Tensor | None, size: int) -> Tensor:
    """[H, n, D] -> [H, n, size]: the side's columns after D, then zeros."""
    wide = tensor.new_zeros(*tensor.shape[:-1], size)
    wide[..., : tensor.shape[-1]] = tensor
    if side is not None:
        wide[..., tensor.shape[-1] : tensor.shape[-1] + side.shape[-1]] = side
    return wide
