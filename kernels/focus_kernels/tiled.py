"""Both engines over a tile primitive: one sequence, [H, n, D] tensors; forward and backward walk the same tiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from .call import Gradients
from .merge import merge_
from .penalty import bucket_sides, widen
from .plan import Bucket, Plan
from .problem import Problem
from .scratch import scratch
from .tiles import Tile, TileOps, attend, attend_backward, take
from .tiling import (
    LARGE,
    Cut,
    band_tiles,
    bucket_marks,
    causal_tiles,
    cut,
    sink_tiles,
    stair_tiles,
    without_buckets,
)

BATCH_BYTES = 1 << 19  # queries gathered at once, at least; a longer sequence gathers one bucket, or an eighth of it


@dataclass(frozen=True)
class Part:
    """Some rows against some keys: where they stand in the sequence, and the tiles that cover their visible pairs."""

    rows: Tensor | slice
    keys: Tensor | slice
    tiles: Iterable[Tile]  # made as they are used: a masked tile holds its mask
    real: tuple[tuple[int, Tensor], ...] = ()  # (place in the buffer, rows) of what is not padding
    sides: tuple[Tensor, Tensor] | None = None  # penalty columns of the rows and of the keys
    distant: bool = True


class Tiled:
    """One sequence on a tile primitive."""

    def __init__(self, ops: TileOps, q: Tensor, k: Tensor, v: Tensor, groups: Tensor, plan: Plan, problem: Problem):
        self.ops, self.groups, self.plan, self.problem = ops, groups, plan, problem
        self.distant_only = False
        self.query_size, self.value_size = q.shape[-1], v.shape[-1]
        self.size = max(q.shape[-1], v.shape[-1])  # the primitive wants one head size
        self.q, self.k, self.v = (_pad(x, self.size) for x in (q, k, v))
        self.length = q.shape[1]
        self.high = torch.float64 if q.dtype == torch.float64 else torch.float32

    @property
    def buckets_first(self) -> bool:
        """Does every row but the sinks' own stand in one bucket, so that these can be written and the band merged?"""
        return self.plan.causal and self.plan.disjoint

    def _pick(self, name: str, x: Tensor, index: Tensor | slice) -> Tensor:
        """[H, n, D] -> the rows of a part: a view, or a copy in a buffer."""
        if isinstance(index, slice):
            return x[:, index]
        return take(x, index, scratch.room(name, (x.shape[0], index.numel(), x.shape[2]), x))

    def parts(self) -> Iterator[Part]:
        """What reaches every row comes first, and is written where the rest is merged. Each part is to be used before
        the next is asked for: they share their working memory."""
        if not self.distant_only and not self.buckets_first:
            yield from self._band()
        if not self.plan.causal and self.length > self.problem.window + 1:
            yield from self._sinks()
        batch: list[Bucket] = []
        row_bytes = self.q.shape[0] * self.size * self.q.element_size()
        most = max(BATCH_BYTES // row_bytes, self.length // 8)
        for bucket in self._split(most):
            rows = sum(b.rows.numel() for b in batch)
            if batch and (not self.plan.disjoint or rows + bucket.rows.numel() > most):
                yield self._buckets(batch)
                batch = []
            batch.append(bucket)
        if batch:
            yield self._buckets(batch)
        if self.buckets_first:
            yield from self._band()

    def _split(self, most: int) -> Iterator[Bucket]:
        """The buckets; a list with too many rows to gather at once (its keys do not matter here) in several."""
        step = -(-most // LARGE.rows) * LARGE.rows
        for bucket in self.plan.buckets:
            if self.plan.causal:
                yield bucket
                continue
            for start in range(0, bucket.rows.numel(), step):
                some = slice(start, start + step)
                yield replace(bucket, rows=bucket.rows[some], reach=bucket.reach[some])

    def _band(self) -> Iterator[Part]:
        marks = bucket_marks(self.groups, self.problem, self.q.dtype) if self.plan.causal else None
        for row, key, tile in band_tiles(self.length, self.problem.window, self.q.dtype, self.q.device):
            rows = slice(row, row + tile.count * tile.size)
            if marks is not None:
                tile = without_buckets(tile, row, key, marks, first=not self.buckets_first)
            yield Part(rows, slice(key, rows.stop), [tile], distant=False)

    def _sinks(self) -> Iterator[Part]:
        sinks, start = self.problem.sinks, self.problem.window + 1
        if sinks:
            rows = self.length - start
            tiles = sink_tiles(rows, start, self.problem.window, sinks, self.q.dtype, self.q.device)
            yield Part(slice(start, self.length), slice(0, sinks), tiles)

    def _buckets(self, batch: list[Bucket]) -> Part:
        """Buckets side by side in one buffer of rows and one of keys."""
        problem, sinks = self.problem, self.problem.sinks if self.plan.causal else 0
        share, sharing = problem.top_k / problem.num_groups, self.q.shape[0] // self.k.shape[0]
        cuts: list[Cut] = []
        row_offset = key_offset = 0
        for bucket in batch:
            rows = bucket.keys if self.plan.causal else bucket.rows  # causal: the sinks stand in as rows, to be dropped
            place = (row_offset, key_offset)
            cuts.append(cut(bucket, rows, self.length, share, self.plan.causal, *place, sharing=sharing))
            row_offset = cuts[-1].row_end
            key_offset = row_offset if self.plan.causal else key_offset + bucket.keys.numel()
        rows = torch.cat([c.padded(c.bucket.keys if self.plan.causal else c.bucket.rows) for c in cuts])
        keys = rows if self.plan.causal else torch.cat([c.bucket.keys for c in cuts])
        real = tuple((c.row_offset + sinks, c.bucket.rows) for c in cuts)
        if self.plan.causal:
            tiles = causal_tiles(cuts)
        else:
            tiles = stair_tiles(cuts, self.length * share, problem.top_k, self.q.dtype)
        sides = None
        if batch[0].below:
            scale = problem.logit_scale(distant=True)[0]
            sides = bucket_sides(self.groups, rows, batch[0].below, sinks, problem, scale, self.q.dtype)
        return Part(rows, keys, tiles, real, sides)

    def _inputs(self, part: Part) -> tuple[Tensor, Tensor, Tensor, float]:
        scale, factor = self.problem.logit_scale(part.distant)
        q, k, v = (
            self._pick(name, x, index)
            for name, x, index in (("q", self.q, part.rows), ("k", self.k, part.keys), ("v", self.v, part.keys))
        )
        if factor is not None:
            q = q * factor.to(q.dtype)[:, None, None]
        if part.sides is not None:
            wide = self.size + part.sides[0].shape[1]
            q, k, v = (
                widen(x, side, wide, scratch.room(name, (*x.shape[:2], wide), x))
                for name, x, side in (("wide q", q, part.sides[0]), ("wide k", k, part.sides[1]), ("wide v", v, None))
            )
        return q, k, v, scale

    def forward(self) -> tuple[Tensor, Tensor]:
        """out [Hq, n, Dv] and lse [Hq, n], in fp32 for half precision; out lies in memory as [n, Hq, Dv]."""
        heads = self.q.shape[0]
        out = self.q.new_empty(self.length, heads, self.value_size, dtype=self.high)
        lse = self.q.new_empty(heads, self.length, dtype=self.high)
        unreached = self.length if self.distant_only else self.problem.sinks if self.buckets_first else 0
        out[:unreached] = 0
        lse[:, :unreached] = float("-inf")
        by_head = out.transpose(0, 1)
        for part in self.parts():
            q, k, v, scale = self._inputs(part)
            if isinstance(part.rows, slice):
                attend(self.ops, part.tiles, q, k, v, scale, by_head[:, part.rows], lse[:, part.rows])
                continue
            more = scratch.room("more", (q.shape[1], heads, self.value_size), out)
            more_lse = scratch.room("more_lse", (heads, q.shape[1]), lse)
            attend(self.ops, part.tiles, q, k, v, scale, more.transpose(0, 1), more_lse)
            if self.buckets_first:
                put_rows_(out, lse, part.real, more, more_lse)
            else:
                merge_rows_(out, lse, part.rows, part.real, more, more_lse)
        scratch.trim()
        return by_head, lse

    def backward(self, grad: Tensor, out: Tensor, lse: Tensor) -> Gradients:
        """Gradients of one sequence from that of its merged output; grad and out [Hq, n, Dv]."""
        grad, out = _pad(grad, self.size), _pad(out, self.size)
        dq, dk, dv = (torch.zeros_like(x, dtype=self.high) for x in (self.q, self.k, self.v))
        slope = dq.new_zeros(self.q.shape[0])  # sum of logit * d(logit) per head, over the pairs with a temperature
        for part in self.parts():
            q, k, v, scale = self._inputs(part)
            some_grad, some_out = (_pad(x, q.shape[-1]) for x in (_real(grad, part), self._pick("now", out, part.rows)))
            some_lse = lse[:, part.rows]
            parts = tuple(torch.zeros_like(x, dtype=self.high) for x in (q, k, v))
            attend_backward(self.ops, part.tiles, some_grad, q, k, v, some_out, some_lse, scale, *parts)
            part_q, part_k, part_v = (x[..., : self.size] for x in parts)
            if part.distant or self.problem.temperature_scope == "all":
                slope += (part_q * q[..., : self.size]).sum((1, 2))
            factor = self.problem.logit_scale(part.distant)[1]
            if factor is not None:
                part_q = part_q * factor.to(part_q.dtype)[:, None, None]
            _add(dq, part.rows, part_q)
            _add(dk, part.keys, part_k)
            _add(dv, part.keys, part_v)
        scratch.trim()
        return Gradients(dq[..., : self.query_size], dk[..., : self.query_size], dv[..., : self.value_size], slope)


def merge_rows_(
    out: Tensor, lse: Tensor, index: Tensor, real: Iterable[tuple[int, Tensor]], more: Tensor, more_lse: Tensor
) -> None:
    """Fold a buffer into the sequence, out [n, Hq, Dv] and lse [Hq, n]: `index` has the row of every place of the
    buffer, `real` lists (place, rows) of those that are not padding."""
    now = scratch.room("now", (index.numel(), *out.shape[1:]), out)
    torch.index_select(out.flatten(1), 0, index, out=now.flatten(1))
    now_lse = lse.index_select(1, index)
    merge_(now.transpose(0, 1), now_lse, more.transpose(0, 1), more_lse)
    put_rows_(out, lse, real, now, now_lse)


def put_rows_(out: Tensor, lse: Tensor, real: Iterable[tuple[int, Tensor]], now: Tensor, now_lse: Tensor) -> None:
    """Write a buffer, now [m, Hq, Dv] and now_lse [Hq, m], into the sequence, as in `merge_rows_`."""
    for start, rows in real:
        piece = slice(start, start + rows.numel())
        out.index_copy_(0, rows, now[piece])
        lse.index_copy_(1, rows, now_lse[:, piece])


def _pad(x: Tensor, size: int) -> Tensor:
    return x if x.shape[-1] == size else F.pad(x, (0, size - x.shape[-1]))


def _real(grad: Tensor, part: Part) -> Tensor:
    """The rows' gradient, 0 for padding."""
    if isinstance(part.rows, slice):
        return grad[:, part.rows]
    buffer = grad.new_zeros(grad.shape[0], part.rows.numel(), grad.shape[2])
    for start, rows in part.real:
        take(grad, rows, out=buffer[:, start : start + rows.numel()])
    return buffer


def _add(x: Tensor, index: Tensor | slice, part: Tensor) -> None:
    if isinstance(index, slice):
        x[:, index] += part
    else:
        x.index_add_(1, index, part)
