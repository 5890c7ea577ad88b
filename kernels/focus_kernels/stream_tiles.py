"""A chunk of queries against a stream's keys, on a tile primitive: one row of the batch at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from .merge import merge_
from .near import attend_near, with_factor
from .plan import Bucket, split_by_group
from .pool import Span
from .problem import Problem
from .scratch import scratch
from .stream import KeyBuckets
from .tiled import merge_rows_
from .tiles import TileOps, attend, take
from .tiling import Cut, cut, stair_tiles, whole_tiles


def attend_row(
    ops: TileOps, q: Tensor, groups: Tensor, stream: KeyBuckets, number: int, problem: Problem
) -> tuple[Tensor, Tensor]:
    """q [Hq, m, D], the real queries of one row, which look into groups [m, k] -> out [Hq, m, D] and lse [Hq, m] in
    fp32 (fp64 stays)."""
    row = stream.rows[number]
    recent = slice(row.start, row.start + row.count)
    keys, values = stream.recent_key[number][:, recent], stream.recent_value[number][:, recent]
    history, scale = row.count - row.chunk, problem.logit_scale(distant=True)[0]
    sinks = None
    if problem.sinks and (number,) in stream.pool.spans:
        first = stream.pool.spans[(number,)].start
        sinks = stream.pool.key[:, first:], stream.pool.value[:, first:]
    far = with_factor(q, problem, distant=True)
    near = with_factor(q, problem, distant=False)
    out, lse = attend_near(ops, near, far, keys, values, sinks, row.length - row.chunk, problem)
    tokens = out.transpose(0, 1)
    lists = _lists(stream, number, groups, problem)
    for batch in [lists] if problem.probes_one else [[one] for one in lists]:
        if batch:
            _attend_buckets(ops, far, keys, values, stream, batch, history, scale, tokens, lse, problem)
    scratch.trim()
    return out, lse


def _pick(name: str, x: Tensor, index: Tensor) -> Tensor:
    return take(x, index, scratch.room(name, (x.shape[0], index.numel(), x.shape[2]), x))


def _lists(stream: KeyBuckets, number: int, groups: Tensor, problem: Problem) -> list[tuple[Bucket, Span]]:
    """Who reads which bucket: its part among the recent keys (places there), and its part in the pool."""
    row = stream.rows[number]
    history = row.count - row.chunk
    skip = min(max(problem.sinks - row.first, 0), row.count)
    distant = max(row.count - 1 - problem.window, skip)  # recent keys before it are distant to some query
    names, kind = stream.bucket_of(stream.recent_groups(number)[skip:distant])
    members = dict(zip(names, split_by_group(kind, len(names), skip), strict=True))
    nothing = kind.new_empty(0, dtype=torch.long)
    found = []
    for name, rows in stream.readers(number, groups).items():
        rows, keys = rows + history, members.get(name, nothing)
        span = stream.pool.spans.get((number, *name), Span(0, 0, 0))
        reach = torch.searchsorted(keys, rows - problem.window)
        if rows.numel() and (span.used or int(reach[-1])):
            found.append((Bucket(keys, rows, reach), span))
    return found


def _attend_buckets(
    ops: TileOps,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    stream: KeyBuckets,
    batch: list[tuple[Bucket, Span]],
    history: int,
    scale: float,
    out: Tensor,
    lse: Tensor,
    problem: Problem,
) -> None:
    cuts: list[Cut] = []
    row_offset = key_offset = 0
    share, sharing = problem.top_k / problem.num_groups, q.shape[0] // keys.shape[0]
    expected = q.shape[1] * share
    for bucket, _ in batch:
        place = (row_offset, key_offset, history, sharing)
        cuts.append(cut(bucket, bucket.rows, q.shape[1], share, False, *place))
        row_offset, key_offset = cuts[-1].row_end, key_offset + bucket.keys.numel()
    index = torch.cat([c.padded(c.bucket.rows) for c in cuts]) - history
    picked = _pick("q", q, index)
    tokens = scratch.room("more", (picked.shape[1], *out.shape[1:]), out)
    more, more_lse = tokens.transpose(0, 1), scratch.room("more_lse", tuple(picked.shape[:2]), lse)
    past = [
        tile
        for c, (_, span) in zip(cuts, batch, strict=True)
        if span.used
        for tile in whole_tiles(c, span.start, span.used, expected, sharing)
    ]
    attend(ops, past, picked, stream.pool.key, stream.pool.value, scale, more, more_lse)
    if any(int(bucket.reach[-1]) for bucket, _ in batch):
        for c, (_, span) in zip(cuts, batch, strict=True):
            if not span.used:
                more[:, c.row_offset : c.row_end], more_lse[:, c.row_offset : c.row_end] = 0, float("-inf")
        near = scratch.room("near", tuple(tokens.shape), out).transpose(0, 1)
        near_lse = scratch.room("near_lse", tuple(more_lse.shape), lse)
        recent = torch.cat([bucket.keys for bucket, _ in batch])
        tiles = stair_tiles(cuts, expected, problem.top_k, q.dtype)
        attend(ops, tiles, picked, _pick("k", keys, recent), _pick("v", values, recent), scale, near, near_lse)
        merge_(more, more_lse, near, near_lse)
    merge_rows_(out, lse, index, [(c.row_offset, c.bucket.rows - history) for c in cuts], tokens, more_lse)
