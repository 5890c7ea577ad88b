"""Decoding on CPU, one token per row: the same sums as `stream_tiles.py` with nothing planned, since a single query
reads all of its window, all of the sinks and all of its buckets.

Written for few torch calls: at short contexts these cost more than what they compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .problem import Problem, check_groups

if TYPE_CHECKING:
    from .stream import KeyBuckets, Recent

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def append_token(stream: KeyBuckets, key: Tensor, value: Tensor, groups: Tensor, padding_mask: Tensor | None) -> bool:
    """Take in a chunk of one real token per row, if that is what it is; else leave it to the general way."""
    recent = stream.recent
    batch, heads, _, size = recent.shape[1:]
    shape = (batch, heads, 1, size)
    if key.shape != shape or value.shape != shape or groups.shape != (batch, 1, stream.groups.shape[2]):
        return False
    if key.dtype != recent.dtype or not recent.is_cpu or not key.is_cpu or stream.key_size != stream.value_size:
        return False
    if padding_mask is not None and (padding_mask.shape != groups.shape[:2] or not bool(padding_mask.all())):
        return False
    if any(row.count > stream.window + 1 or row.length < stream.sinks for row in stream.rows):
        return False
    ids = [listed for (listed,) in groups.tolist()]
    if any(min(listed) < 0 or max(listed) >= stream.num_groups or len(set(listed)) < len(listed) for listed in ids):
        check_groups(groups, stream.num_groups)
    for number, row in enumerate(stream.rows):
        if row.count > stream.window:
            _evict_one(stream, number, row)
    stream.make_room(1)
    key, value, recent = key.detach().select(2, 0), value.detach().select(2, 0), stream.recent
    for number, row in enumerate(stream.rows):
        new_key, new_value = recent.select(1, number).select(2, row.start + row.count)
        new_key.copy_(key[number])
        new_value.copy_(value[number])
        stream.note_groups(number, groups[number])
        row.count, row.length, row.chunk, row.places, row.listed = row.count + 1, row.length + 1, 1, None, ids[number]
    stream.chunk = 1
    return True


def _evict_one(stream: KeyBuckets, number: int, row: Recent) -> None:
    """Move a row's oldest recent token into its bucket, unless it is a sink."""
    position, pool = row.length - row.count, stream.pool
    if position >= stream.sinks:
        name = (number, *stream.bucket_name(stream.groups.select(0, number).select(0, position).tolist()))
        span = pool.spans.get(name)
        if span is None or span.used == span.room:
            pool.reserve({name: 1})
            span = pool.spans[name]
        pool.data.select(2, span.start + span.used).copy_(stream.recent.select(1, number).select(2, row.start))
        span.used += 1
    row.start, row.count = row.start + 1, row.count - 1


def serves(stream: KeyBuckets) -> bool:
    """Is the last chunk one real token per row?"""
    return stream.chunk == 1 and all(row.chunk == 1 for row in stream.rows)


def attend_tokens(query: Tensor, stream: KeyBuckets, problem: Problem, groups: Tensor | None) -> tuple[Tensor, Tensor]:
    """The last tokens' queries [B, Hq, 1, D] -> out [B, Hq, 1, D] in fp32 (fp64 stays) and lse [B, Hq, 1]; they look
    into groups [B, 1, k], by default their own. Heads that share keys are rows of one call: keys are read once."""
    heads = stream.recent.shape[2]
    q = query.reshape(query.shape[0], heads, -1, query.shape[3])
    near_scale, factor = problem.logit_scale(distant=False)
    near = q if factor is None else q * factor.to(q.dtype).view(heads, -1, 1)
    far_scale, far = near_scale, near
    apart = problem.temperature is not None and problem.temperature_scope == "distant"
    if apart:
        far_scale, factor = problem.logit_scale(distant=True)
        far = q if factor is None else q * factor.to(q.dtype).view(heads, -1, 1)
    found = []
    for number, row in enumerate(stream.rows):
        listed = row.listed if groups is None else groups[number, 0].tolist()
        if listed is None:
            listed = stream.query_groups(number, None)[0].tolist()
        some_near, some_far = (near, far) if len(stream.rows) == 1 else (near[number, None], far[number, None])
        mine = stream.recent.select(1, number)  # [2, H, room, D]
        begin, sinks = row.start, min(stream.sinks, row.length - row.count)
        parts = []
        if sinks:
            held = stream.pool.data.narrow(2, stream.pool.spans[(number,)].start, sinks)
            if apart:
                parts.append(_attend(some_far, held, far_scale))
            else:  # in front of the window, where tokens stood that have gone
                begin -= sinks
                mine.narrow(2, begin, sinks).copy_(held)
        parts.append(_attend(some_near, mine.narrow(2, begin, row.start + row.count - begin), near_scale))
        for name in stream.matching(number, listed):
            span = stream.pool.spans[name]
            if span.used:
                parts.append(_attend(some_far, stream.pool.data.narrow(2, span.start, span.used), far_scale))
        found.append(_join(parts))
    out, lse = found[0] if len(found) == 1 else (torch.cat(x) for x in zip(*found, strict=True))
    return out.reshape(query.shape), lse.reshape(query.shape[:3])


def _attend(q: Tensor, keys_values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q [1, Hkv, rep, D] against all of [2, Hkv, n, D]."""
    key, value = keys_values.unsqueeze(1)
    out, lse = _flash(q, key, value, 0.0, False, scale=scale)
    return (out, lse) if out.dtype == lse.dtype else (out.to(lse.dtype), lse)


def _join(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Disjoint parts as one softmax; none of them is empty."""
    out, lse = parts[0]
    for more, more_lse in parts[1:]:
        out = torch.lerp(out, more, torch.sigmoid(more_lse - lse).unsqueeze(-1))
        lse = torch.logaddexp(lse, more_lse)
    return out, lse
