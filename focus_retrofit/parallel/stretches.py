"""The distant pairs of a sequence, cut into stretches of equal cost, one per rank. Integers only, the same everywhere.

Group after group, the rows that look into it stand in position order; a row costs as many pairs as it has distant keys
in that group. A stretch is a run of this order, so a rank works on few groups and needs the keys of these alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from focus_kernels.plan import Bucket, distant_buckets
from focus_kernels.problem import Problem

NEAR = 0.05  # of a stretch's cost


@dataclass(frozen=True)
class Stretch:
    """What one rank computes: `lists` in places of `rows` and `keys`, which are the numbers of the tokens it needs."""

    rows: Tensor  # [M] increasing: a row that looks into several of the stretch's groups is needed once
    keys: Tensor  # [N] list after list
    lists: tuple[Bucket, ...]

    @property
    def cost(self) -> int:
        """Pairs per head."""
        return sum(int(one.reach.sum()) for one in self.lists)


def cut_stretches(groups: Tensor, problem: Problem, ranks: int, everywhere: int = 0) -> list[Stretch]:
    """groups [B, T, k] of all tokens, on the CPU -> a stretch for each rank; queries before position `everywhere` look
    into all groups."""
    tokens = groups.shape[1]
    listed = [
        replace(bucket, rows=bucket.rows + row * tokens, keys=bucket.keys + row * tokens)
        for row, ids in enumerate(groups)
        for bucket in distant_buckets(ids, problem, everywhere)
    ]
    ends = cut_costs([one.reach for one in listed], ranks)
    return [_stretch(_between(listed, begin, end)) for begin, end in pairwise([0, *ends])]


def cut_costs(costs: list[Tensor], parts: int) -> list[int]:
    """Costs of the rows of each list, positive -> where each of the parts ends, counted through all lists.

    A row goes to the part that its middle falls into; but where a list's end is near, the part ends there: the last
    few rows of a list would need all of its keys.
    """
    if not costs:
        return [0] * parts
    each = torch.cat(costs)
    total = torch.cat([each.new_zeros(1), each.cumsum(0)])  # [M + 1], the cost before each row
    part = (parts * (total[1:] + total[:-1])).div(2 * total[-1], rounding_mode="floor")
    ends = torch.searchsorted(part, torch.arange(1, parts))
    lists = torch.tensor([0, *(one.numel() for one in costs)]).cumsum(0)
    gap = (total[lists][None] - total[ends][:, None]).abs()  # [parts - 1, lists + 1]
    least, nearest = gap.min(1)
    close = least * parts <= total[-1] * NEAR
    return [*torch.where(close, lists[nearest], ends).tolist(), each.numel()]


def _between(listed: list[Bucket], begin: int, end: int) -> list[Bucket]:
    """The lists' rows [begin, end), counted through all of them, each with the keys that they reach."""
    found = []
    first = 0
    for one in listed:
        low, high = max(begin - first, 0), min(end - first, one.rows.numel())
        first += one.rows.numel()
        if low < high:
            reach = one.reach[low:high]
            found.append(Bucket(one.keys[: int(reach[-1])], one.rows[low:high], reach))
    return found


def _stretch(parts: list[Bucket]) -> Stretch:
    """Tokens become places in the stretch's own rows and keys."""
    nothing = torch.empty(0, dtype=torch.long)
    rows = torch.cat([one.rows for one in parts]).unique() if parts else nothing
    keys = torch.cat([one.keys for one in parts]) if parts else nothing
    lists, first = [], 0
    for one in parts:
        places = torch.arange(first, first + one.keys.numel())
        lists.append(Bucket(places, torch.searchsorted(rows, one.rows), one.reach))
        first += one.keys.numel()
    return Stretch(rows, keys, tuple(lists))
