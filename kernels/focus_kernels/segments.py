"""A plan as segments for varlen kernels: packed rows against packed keys, causal at the bottom right, or a window.

Token numbers count over all sequences of the call laid end to end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .penalty import band_sides, mismatch_sides, strength
from .plan import Plan, match_mask, multi_hot
from .problem import Problem


@dataclass(frozen=True)
class Segments:
    """One varlen call. rows and keys are token numbers, None for all tokens in order; sides are penalty columns."""

    rows: Tensor | None
    keys: Tensor | None
    row_counts: list[int]
    key_counts: list[int]
    causal: bool = False
    window: int = -1  # tokens to the left, itself not counted; -1 for no limit
    sides: tuple[Tensor, Tensor] | None = None
    distant: bool = True


@dataclass(frozen=True)
class Ranges:
    """One call in which segments read prefixes of lists of keys: list l of `key_lists`, its first `key_counts` keys.

    Segments are ordered by list, so that where a kernel takes offsets they never decrease.
    """

    rows: Tensor
    row_counts: list[int]
    key_lists: list[Tensor]
    lists: list[int]
    key_counts: list[int]
    chunks: list[int]  # which chunk of the sequence a segment belongs to

    def by_chunk(self) -> Iterator[Segments]:
        """The same pairs as plain segments, chunk by chunk: within one no key is listed twice, as a backward needs."""
        starts = [0]
        for count in self.row_counts:
            starts.append(starts[-1] + count)
        for chunk in sorted(set(self.chunks)):
            chosen = [n for n, c in enumerate(self.chunks) if c == chunk]
            rows = torch.cat([self.rows[starts[n] : starts[n + 1]] for n in chosen])
            keys = torch.cat([self.key_lists[self.lists[n]][: self.key_counts[n]] for n in chosen])
            yield Segments(rows, keys, [self.row_counts[n] for n in chosen], [self.key_counts[n] for n in chosen])


@dataclass(frozen=True)
class Stretches:
    """Runs of consecutive tokens, [m, k] groups each. The first token of stretch n has key number starts[n] and
    position positions[n]; were it a query, it would be row row_starts[n]. Its last tokens' queries look into other
    groups than their own where `looking` says so."""

    groups: list[Tensor]
    starts: list[int]
    row_starts: list[int]
    positions: list[int]
    looking: list[Tensor] | None = None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, int, int, int]]:
        """(groups of queries, of keys, start, row start, position); both lists of groups end with the last token."""
        looking = self.groups if self.looking is None else self.looking
        return zip(looking, self.groups, self.starts, self.row_starts, self.positions, strict=True)


def band(plans: list[Plan], groups: list[Tensor], problem: Problem, dtype: torch.dtype) -> Segments:
    """The window over every sequence; for the sorted engine without its matching pairs."""
    lengths = [g.shape[0] for g in groups]
    sides = None
    if any(plan.causal for plan in plans):
        scale = problem.logit_scale(distant=False)[0]
        pairs = []
        for plan, g in zip(plans, groups, strict=True):
            pair = band_sides(g, problem, scale, dtype)
            pairs.append(pair if plan.causal else (torch.zeros_like(pair[0]), pair[1]))
        sides = (torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs]))
    return Segments(None, None, lengths, lengths, causal=True, window=problem.window, sides=sides, distant=False)


def matching(plans: list[Plan], groups: list[Tensor], problem: Problem, dtype: torch.dtype) -> Segments | None:
    """Sorted engine: every bucket a causal segment; aligned bottom-right, all its rows see the sinks in front."""
    rows, keys, hot_rows, hot_keys = [], [], [], []
    amount = strength(problem.logit_scale(distant=True)[0])
    start = 0
    for plan, g in zip(plans, groups, strict=True):
        for bucket in plan.buckets:
            rows.append(bucket.rows + start)
            keys.append(bucket.keys + start)
            if not problem.probes_one:
                hot = multi_hot(g, problem.num_groups, dtype) * amount
                hot[:, bucket.below :] = 0
                key_side = hot[bucket.keys]
                key_side[: problem.sinks, : bucket.below] = amount
                hot_rows.append(-hot[bucket.rows])
                hot_keys.append(key_side)
        start += g.shape[0]
    if not rows:
        return None
    sides = (torch.cat(hot_rows), torch.cat(hot_keys)) if hot_rows else None
    counts = [r.numel() for r in rows], [k.numel() for k in keys]
    return Segments(torch.cat(rows), torch.cat(keys), *counts, causal=True, sides=sides)


def prefixes(plans: list[Plan], groups: list[Tensor], problem: Problem, chunk: int) -> Ranges | None:
    """Chunked engine: the keys before a chunk's window are distant for all of it, and a prefix of each bucket.

    Chunks start at window + 1; the rest of a chunk's distant keys are its triangle, see `triangle`.
    """
    first = problem.window + 1
    rows, row_counts, key_lists, lists, key_counts, chunks = [], [], [], [], [], []
    start = 0
    for plan, g in zip(plans, groups, strict=True):
        sinks = torch.arange(min(problem.sinks, g.shape[0]), device=g.device)
        everyone = torch.arange(first, max(g.shape[0], first), device=g.device)
        pairs = [(sinks, everyone), *((b.keys, b.rows) for b in plan.buckets)] if g.shape[0] > first else []
        for keys, readers in pairs:
            number = (readers - first).div(chunk, rounding_mode="floor")
            ids, counts = torch.unique_consecutive(number, return_counts=True)
            seen = torch.searchsorted(keys, ids * chunk)  # keys before (chunk's first row) - window - 1
            key_lists.append(keys + start)
            taken = (seen > 0).repeat_interleave(counts)
            rows.append(readers[taken] + start)
            for c, count, keep in zip(ids.tolist(), counts.tolist(), seen.tolist(), strict=True):
                if keep:
                    row_counts.append(count)
                    lists.append(len(key_lists) - 1)
                    key_counts.append(keep)
                    chunks.append(c)
        start += g.shape[0]
    if not row_counts:
        return None
    return Ranges(torch.cat(rows), row_counts, key_lists, lists, key_counts, chunks)


def triangle(stretches: Stretches, problem: Problem, dtype: torch.dtype, chunk: int) -> Segments | None:
    """Row i sees matching keys up to i - window - 1: the rows from window + 1 on against the keys from 0 on are causal
    squares, a chunk each; pairs that do not match are penalised away."""
    first = problem.window + 1
    rows, keys, counts, sides = [], [], [], []
    for looking, g, start, row_start, position in stretches:
        many = g.shape[0] - first
        if many <= 0:
            continue
        place = torch.arange(many, device=g.device)
        rows.append(place + (row_start + first))
        keys.append(place + start)
        counts += [min(chunk, many - c) for c in range(0, many, chunk)]
        sides.append(mismatch_sides(looking[-many:], g[:many], problem, max(problem.sinks - position, 0), dtype))
    if not rows:
        return None
    wide = max(s[0].shape[1] for s in sides)
    row_side, key_side = (torch.cat([F.pad(s[n], (0, wide - s[n].shape[1])) for s in sides]) for n in (0, 1))
    return Segments(torch.cat(rows), torch.cat(keys), counts, counts, causal=True, sides=(row_side, key_side))


def ragged(stretches: Stretches, problem: Problem, chunk: int) -> Segments | None:
    """What `triangle` holds, without a penalty: each row by itself against a copy of its matching keys. Costs memory;
    for kernels that bend logits by a softcap, or have no columns to spare."""
    first = problem.window + 1
    rows, keys, row_counts, key_counts = [], [], [], []
    for looking, g, start, row_start, position in stretches:
        many = g.shape[0] - first
        for begin in range(0, many, chunk):
            stop = min(begin + chunk, many)
            asking = looking[-many:][begin:stop]
            seen = match_mask(asking, g[begin:stop], problem)
            seen[:, : max(problem.sinks - position - begin, 0)] = True
            pairs = seen.tril().nonzero()
            per_row = torch.bincount(pairs[:, 0], minlength=stop - begin)
            used = per_row.nonzero()[:, 0]
            rows.append(used + (row_start + first + begin))
            keys.append(pairs[:, 1] + (start + begin))
            row_counts += [1] * used.numel()
            key_counts += per_row[used].tolist()
    if not row_counts:
        return None
    return Segments(torch.cat(rows), torch.cat(keys), row_counts, key_counts)
