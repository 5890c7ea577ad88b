"""A mask inside the dot product: a few extra dimensions in which unwanted pairs get a logit of -BIG.

q'.k' = q.k - BIG * <a_i, b_j>; where <a_i, b_j> is 0 nothing is added, so wanted pairs keep every bit.
"""

from __future__ import annotations

from math import comb

import torch
from torch import Tensor

from .plan import match_mask, multi_hot
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


def mismatch_width(problem: Problem) -> int:
    """Columns that `mismatch_sides` may need: a key's group, or for "share" its set of groups."""
    return comb(problem.num_groups, problem.top_k) if problem.match == "share" else problem.num_groups


def mismatch_sides(
    query_groups: Tensor, key_groups: Tensor, problem: Problem, sinks: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """[m, c] and [n, c] sides that drop every pair that does not match; the first `sinks` keys match everybody."""
    if problem.match == "probe" or problem.probes_one:
        kinds = torch.arange(problem.num_groups, device=key_groups.device)[:, None]
        kind = key_groups[:, 0].long()
    else:
        kinds, kind = torch.unique(key_groups.sort(1).values, dim=0, return_inverse=True)
    reads = match_mask(query_groups, kinds, problem)  # [m, kinds]
    amount = strength(problem.logit_scale(distant=True)[0])
    key = multi_hot(kind[:, None], len(kinds), dtype) * amount
    key[:sinks] = 0
    return (~reads).to(dtype) * -amount, key


def widen(tensor: Tensor, side: Tensor | None, size: int, out: Tensor | None = None) -> Tensor:
    """[H, n, D] -> [H, n, size]: the side's columns after D, then zeros."""
    wide = tensor.new_empty(*tensor.shape[:-1], size) if out is None else out
    end = tensor.shape[-1]
    wide[..., :end] = tensor
    if side is not None:
        wide[..., end : end + side.shape[-1]] = side
        end += side.shape[-1]
    wide[..., end:] = 0
    return wide
