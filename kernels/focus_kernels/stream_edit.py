"""Changing a stream as a whole: forgetting its newest tokens, choosing rows of the batch, moving it to a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from . import contain
from .errors import FocusError
from .pool import held_size, page_of
from .scratch import lasting

if TYPE_CHECKING:
    from .stream import KeyBuckets


def crop(stream: KeyBuckets, counts: Sequence[int]) -> None:
    """Forget the last counts[r] real tokens of row r, exactly."""
    if len(counts) != len(stream.rows):
        raise FocusError(f"crop got {len(counts)} counts for a stream of {len(stream.rows)} rows: give one per row")
    for number, (row, count) in enumerate(zip(stream.rows, counts, strict=True)):
        if not 0 <= count <= row.length:
            raise FocusError(
                f"cannot crop {count} tokens of row {number}, which has {row.length}: give 0..{row.length}"
            )
    stream.chunk = None
    stream.straighten()
    for number, count in enumerate(counts):
        _crop_row(stream, number, stream.rows[number].length - count)
    contain.forget(stream)


def _crop_row(stream: KeyBuckets, number: int, length: int) -> None:
    """Keep the first `length` tokens; those that are within the window again come back from their buckets' ends."""
    row, pool = stream.rows[number], stream.pool
    row.chunk, row.places = 0, None
    low, first = length - stream.kept(length), row.first
    if low >= first:
        row.count, row.length = length - first, length
    else:
        stream.make_room(length - low)
        back = min(first, length) - low  # tokens at [low, low + back) return, what follows in the pool is dropped
        kept = max(length - first, 0)
        ends = [(*found, pool.spans[found[0]]) for found in stream.by_bucket(number, low, first - low)]
        sinks = range(low, min(stream.sinks, low + back))
        mine, start = stream.recent[:, number], stream.sinks  # [2, H, room, D]
        mine[:, :, start + back : start + back + kept] = mine[:, :, row.start : row.start + kept].clone()
        for _, index, span in ends:
            some = int(torch.searchsorted(index, back))
            tail = span.start + span.used - index.numel()
            mine[:, :, index[:some] + start] = pool.data[:, :, tail : tail + some].to(mine.dtype)
        if sinks:
            far = pool.spans[(number,)].start
            mine[:, :, start : start + len(sinks)] = pool.data[:, :, far + sinks.start : far + sinks.stop]
        for _, index, span in ends:
            span.used -= index.numel()
        row.move(start, length - low)
        row.length = length
    if (number,) in pool.spans:
        pool.spans[(number,)].used = min(stream.sinks, length)


@lasting
def select_rows(stream: KeyBuckets, indices: Tensor | Sequence[int]) -> None:
    """Make the batch these rows; the identity costs nothing."""
    chosen = [int(i) for i in (indices.tolist() if isinstance(indices, Tensor) else indices)]
    total = len(stream.rows)
    if chosen == list(range(total)):
        return
    if not chosen or not all(0 <= i < total for i in chosen):
        raise FocusError(
            f"cannot select rows {chosen} of a stream of {total} rows: give at least one of 0..{total - 1}"
        )
    stream.straighten()
    places = torch.tensor(chosen, device=stream.device)
    stream.recent, stream.groups = stream.recent.index_select(1, places), stream.groups.index_select(0, places)
    sources = {(new, *name[1:]): name for new, old in enumerate(chosen) for name in stream.pool.spans if name[0] == old}
    stream.pool.rebuild(sources)
    stream.rows = [replace(stream.rows[i]) for i in chosen]
    stream.broken = {new: stream.broken[old] for new, old in enumerate(chosen) if old in stream.broken}


@lasting
def move(stream: KeyBuckets, device: torch.device) -> None:
    """Everything to a device; where its kernels read pages, the buckets are laid out in pages from then on."""
    if not stream.rows:
        return
    stream.straighten()
    pool = stream.pool
    stream.recent, stream.groups, pool.data = (x.to(device) for x in (stream.recent, stream.groups, pool.data))
    for row in stream.rows:
        row.places = None if row.places is None else row.places.to(device)
    if stream.page < page_of(device):
        stream.page = pool.align = page_of(device)
        spare = held_size(stream.recent.shape[4], stream.page) - stream.recent.shape[4]
        stream.recent, pool.data = F.pad(stream.recent, (0, spare)), F.pad(pool.data, (0, spare))
        pool.rebuild({name: name for name in pool.spans})
