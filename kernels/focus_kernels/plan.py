"""Index planning: from group ids to lists of queries and keys. Integers only; every backend reads the same plan.

Positions below are within one sequence of real tokens. A *bucket* is an increasing list of key positions, the sinks
first where they are in it; its rows say how many leading keys each of them sees (`reach`, non-decreasing).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .problem import Problem


@dataclass(frozen=True)
class Bucket:
    """Keys stored together, and the queries that read them; a token may be in several lists of rows."""

    keys: Tensor  # [N] positions, increasing
    rows: Tensor  # [M] positions, increasing
    reach: Tensor  # [M] leading keys that each row sees, non-decreasing
    below: int = 0  # pairs that share a group < below are counted in that group's bucket


@dataclass(frozen=True)
class Plan:
    """What one sequence computes: a causal band of `window`, the buckets and, for the chunked engine, the sinks.

    sorted: a bucket holds a group's matching pairs, near and far, with the sinks in front, so its reach is a causal
    diagonal; the band leaves those pairs out. chunked: buckets hold only what lies beyond the window.
    """

    engine: str
    buckets: tuple[Bucket, ...]
    disjoint: bool  # no row is in two buckets

    @property
    def causal(self) -> bool:
        return self.engine == "sorted"


def make_plan(engine: str, groups: Tensor, problem: Problem) -> Plan:
    """Plan one sequence; groups [n, k]."""
    if groups.shape[0] <= problem.window + 1:
        return Plan("chunked", (), True)  # every pair is local
    if engine == "sorted":
        buckets = _matching(groups, problem)
    elif problem.match == "probe" or problem.probes_one:
        buckets = distant_buckets(groups, problem)
    else:
        buckets = _distant_share(groups, problem)
    return Plan(engine, tuple(buckets), problem.probes_one)


def split_by_group(groups: Tensor, num_groups: int, offset: int = 0) -> list[Tensor]:
    """groups [n] or [n, k] -> for each group the increasing positions (plus `offset`) of the tokens that list it."""
    flat = groups.reshape(-1).long()
    small = flat.to(torch.uint8) if num_groups <= 256 else flat
    order = torch.argsort(small, stable=True)
    if groups.dim() == 2:
        order = order.div(groups.shape[1], rounding_mode="floor")
    return list((order + offset).split(torch.bincount(flat, minlength=num_groups).tolist()))


def _matching(groups: Tensor, problem: Problem) -> Iterator[Bucket]:
    """Sorted engine: per group, its members (beyond the sinks) against the sinks and themselves, causally."""
    sinks = torch.arange(problem.sinks, device=groups.device)
    for group, rows in enumerate(split_by_group(groups[problem.sinks :], problem.num_groups, problem.sinks)):
        if rows.numel():
            reach = torch.arange(rows.numel(), device=rows.device) + (problem.sinks + 1)
            yield Bucket(torch.cat([sinks, rows]), rows, reach, below=0 if problem.probes_one else group)


def distant_buckets(groups: Tensor, problem: Problem, everywhere: int = 0) -> Iterator[Bucket]:
    """Chunked engine, probe: keys by primary group, read by every query that lists it; queries before position
    `everywhere` read all groups."""
    members = split_by_group(groups[problem.sinks :, 0], problem.num_groups, problem.sinks)
    start = problem.window + 1
    listed = max(start, min(everywhere, groups.shape[0]))
    readers = split_by_group(groups[listed:], problem.num_groups, listed)
    early = torch.arange(start, listed, device=groups.device)
    for keys, rows in zip(members, readers, strict=True):
        yield from _reading(keys, torch.cat([early, rows]) if early.numel() else rows, problem.window)


def _distant_share(groups: Tensor, problem: Problem) -> Iterator[Bucket]:
    """Chunked engine, share with k > 1: keys by their *set* of groups, so each is stored once and read once."""
    sets, kind = torch.unique(groups.sort(1).values, dim=0, return_inverse=True)
    hot = multi_hot(sets, problem.num_groups, torch.float32)
    overlap = hot @ hot.T > 0  # [sets, sets]
    start = problem.window + 1
    reader = kind[start:]
    for number, keys in enumerate(split_by_group(kind[problem.sinks :], len(sets), problem.sinks)):
        yield from _reading(keys, overlap[number][reader].nonzero()[:, 0] + start, problem.window)


def _reading(keys: Tensor, rows: Tensor, window: int) -> Iterator[Bucket]:
    """The rows that see any of these keys beyond their window, if there are any."""
    reach = torch.searchsorted(keys, rows - window)
    first = int(torch.searchsorted(reach, 1))  # rows before it see nothing
    if first < rows.numel():
        yield Bucket(keys, rows[first:], reach[first:])


def multi_hot(groups: Tensor, num_groups: int, dtype: torch.dtype) -> Tensor:
    """[n, k] ids -> [n, K] with ones."""
    return torch.zeros(groups.shape[0], num_groups, dtype=dtype, device=groups.device).scatter_(1, groups.long(), 1)


def match_mask(query_groups: Tensor, key_groups: Tensor, problem: Problem) -> Tensor:
    """[m, k] and [n, k] -> [m, n]: do they match? For tiles small enough to write down."""
    hot = multi_hot(query_groups, problem.num_groups, torch.float32)
    if problem.match == "probe":
        key_groups = key_groups[:, :1]
    return hot @ multi_hot(key_groups, problem.num_groups, torch.float32).T > 0


def visible_pairs(groups: Tensor, problem: Problem) -> int:
    """How many pairs of a sequence are visible, per head: what an ideal kernel would compute. groups [n, k]."""
    length, window, sinks = groups.shape[0], problem.window, problem.sinks
    if length <= window + 1:
        return length * (length + 1) // 2
    band = length * (window + 1) - window * (window + 1) // 2
    beyond = length - window - 1  # rows with a distant key
    seen_sinks = beyond * sinks - min(beyond, sinks) * (2 * sinks - min(beyond, sinks) - 1) // 2 if sinks else 0
    return band + seen_sinks + sum(int(b.reach.sum()) for b in make_plan("chunked", groups, problem).buckets)
