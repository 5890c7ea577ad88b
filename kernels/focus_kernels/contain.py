"""NaN and infinity in keys and values stay with the rows that see them.

A kernel multiplies what it masks by 0, and 0 * NaN is NaN: one broken key would spoil every row that shares a tile with
it. So a broken token is computed as zeros, and the rows that see it are made NaN afterwards. Looking for one costs two
sums; everything else here is paid only when there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .call import Call
from .problem import Problem

if TYPE_CHECKING:
    from .stream import KeyBuckets

NAN = float("nan")


@dataclass(frozen=True)
class Broken:
    """Broken tokens of one sequence, by position: which of its [n] places, in which key heads, of which groups."""

    positions: Tensor  # [n], increasing
    heads: Tensor  # [Hkv, n]
    groups: Tensor  # [n, k]

    @staticmethod
    def among(bad: Tensor, groups: Tensor, first: int = 0) -> Broken | None:
        """Of tokens at `first` and on, bad [Hkv, n] and groups [n, k]."""
        places = bad.any(0).nonzero()[:, 0]
        return Broken(places + first, bad[:, places], groups[places].long()) if places.numel() else None

    def before(self, length: int) -> Broken | None:
        """Those at positions below `length`."""
        kept = int(torch.searchsorted(self.positions, length))
        return Broken(self.positions[:kept], self.heads[:, :kept], self.groups[:kept]) if kept else None

    def followed_by(self, more: Broken) -> Broken:
        pairs = ((self.positions, more.positions, 0), (self.heads, more.heads, 1), (self.groups, more.groups, 0))
        return Broken(*(torch.cat([old, new.to(old)], dim) for old, new, dim in pairs))

    def seen_by(self, first: int, groups: Tensor, problem: Problem) -> Tensor:
        """[Hkv, m]: which queries, at positions `first` and on and looking into groups [m, k'], see one of them.

        A distant one is seen by all that match from the earliest of its group on, so that is all to be known of it."""
        device, count = groups.device, groups.shape[0]
        positions, heads, held = (x.to(device) for x in (self.positions, self.heads, self.groups))
        never = torch.iinfo(torch.long).max
        at = torch.where(heads, positions, never)  # [Hkv, n]
        if problem.match == "probe":
            held = held[:, :1]
        earliest = at.new_full((heads.shape[0], problem.num_groups), never)
        index = held.flatten().expand(heads.shape[0], -1)
        earliest.scatter_reduce_(1, index, at.repeat_interleave(held.shape[1], 1), "amin")
        sink = at.masked_fill(positions >= problem.sinks, never).amin(1, keepdim=True)
        place = torch.arange(first, first + count, device=device)
        seen = torch.minimum(earliest[:, groups.long()].amin(-1), sink) <= place
        # the window: broken tokens counted from its start to the query
        window = min(problem.window, first + count)
        near = (positions >= first - window) & (positions < first + count)
        marks = at.new_zeros(heads.shape[0], window + count)
        marks[:, positions[near] - (first - window)] = heads[:, near].long()
        total = F.pad(marks.cumsum(1), (1, 0))
        return seen | (total[:, window + 1 :] > total[:, :count])


def finite(key: Tensor, value: Tensor) -> bool:
    """No key and no value [B, Hkv, T, *] is NaN or infinite, unless a sum overflows: then this says False too.

    Of a few numbers the sum of key * value is one call fewer, which a decoding step feels."""
    if key.shape == value.shape and key.shape[2] == 1:
        total = torch.dot(key.reshape(-1), value.reshape(-1))
    else:
        total = key.sum() + value.sum()
    return math.isfinite(total.item())


def find(key: Tensor, value: Tensor) -> Tensor | None:
    """[B, Hkv, T]: tokens whose key or value [B, Hkv, T, *] is not finite; None if there are none."""
    if finite(key, value):
        return None
    key, value = key.detach(), value.detach()
    bad = ~(key.isfinite().all(-1) & value.isfinite().all(-1))
    return bad if bool(bad.any()) else None


def contained(compute: Callable[[Call], tuple[Tensor, Tensor]], call: Call) -> tuple[Tensor, Tensor]:
    """out and lse of a call, NaN in the rows that see a broken token, and as if these were zeros in all others."""
    bad = find(call.key, call.value)
    if bad is None:
        return compute(call)
    seen = torch.zeros_like(bad)
    for sequence in call.sequences:
        groups = sequence.take(call.groups, 0)
        broken = Broken.among(sequence.take(bad, 1), groups)
        if broken is not None:
            sequence.put(seen, 1, broken.seen_by(0, groups, call.problem))
    rows = seen.repeat_interleave(call.query.shape[1] // bad.shape[1], 1)
    query, key, value = blank(call.query, rows), blank(call.key, bad), blank(call.value, bad)
    out, lse = compute(replace(call, query=query, key=key, value=value))
    return out.masked_fill(rows[..., None], NAN), lse.masked_fill(rows, NAN)


def blank(tensor: Tensor, where: Tensor) -> Tensor:
    """tensor [B, H, T, D] with zeros at where [B, H, T]; its gradient is NaN there."""
    result: Tensor = _Blank.apply(tensor, where[..., None])
    return result


class _Blank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, where: Tensor) -> Tensor:
        ctx.save_for_backward(where)
        return tensor.masked_fill(where, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].masked_fill(ctx.saved_tensors[0], NAN), None


def clean(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """A stream's chunk with zeros for its broken tokens, and which these are, if any: [B, Hkv, c]."""
    if key.dim() != 4 or key.shape[:3] != value.shape[:3]:
        return key, value, None  # the stream says what is wrong with it
    bad = find(key, value)
    if bad is None:
        return key, value, None
    return key.masked_fill(bad[..., None], 0), value.masked_fill(bad[..., None], 0), bad


def remember(stream: KeyBuckets, bad: Tensor, groups: Tensor, padding_mask: Tensor | None) -> None:
    """The broken ones, bad [B, Hkv, c], of a chunk that a stream has taken in, with groups [B, c, k]."""
    for number, row in enumerate(stream.rows):
        mine, listed = bad[number].cpu(), groups[number].cpu()
        if padding_mask is not None:
            real = padding_mask[number].cpu().bool()
            mine, listed = mine[:, real], listed[real]
        new, old = Broken.among(mine, listed, row.length - mine.shape[1]), stream.broken.get(number)
        if new is not None:
            stream.broken[number] = new if old is None else old.followed_by(new)


def forget(stream: KeyBuckets) -> None:
    """A stream was cropped: what it no longer holds can break nothing."""
    kept = {number: broken.before(stream.rows[number].length) for number, broken in stream.broken.items()}
    stream.broken = {number: broken for number, broken in kept.items() if broken is not None}


def spoil_(out: Tensor, lse: Tensor, stream: KeyBuckets, problem: Problem, groups: Tensor | None) -> None:
    """NaN in the last chunk's out [B, Hq, c, D] and lse [B, Hq, c] where its queries see a broken token."""
    for number, broken in stream.broken.items():
        row = stream.rows[number]
        if not row.chunk:
            continue
        stream.settle(number)
        looking = stream.query_groups(number, groups)
        seen = broken.seen_by(row.length - row.chunk, looking, problem)
        seen = seen.repeat_interleave(out.shape[1] // seen.shape[0], 0)
        rows = torch.zeros(out.shape[1:3], dtype=torch.bool, device=out.device)
        rows[:, slice(None) if row.places is None else row.places] = seen
        out[number].masked_fill_(rows[..., None], NAN)
        if lse.shape == out.shape[:3]:
            lse[number].masked_fill_(rows, NAN)
