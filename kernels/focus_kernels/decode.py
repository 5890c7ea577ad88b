"""Decoding on CPU, one token per row: the same sums as `stream_tiles.py` with nothing planned, since a single query
reads all of its window, all of the sinks and all of its buckets.

Written for few torch calls: at short contexts these cost more than what they compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import gcd
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .problem import Problem, check_groups
from .recent import NearView, Recent
from .tiles import CONVERTED

if TYPE_CHECKING:
    from .stream import KeyBuckets

CUT = 4096  # keys of a list that is worth cutting
BACKENDS = ("auto", "cpu", "cpu:chunked")
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
    if any(row.length < stream.sinks or not _room(stream, row) for row in stream.rows):
        return False
    ids = [listed for (listed,) in groups.tolist()]
    if any(min(listed) < 0 or max(listed) >= stream.num_groups or len(set(listed)) < len(listed) for listed in ids):
        check_groups(groups, stream.num_groups)
    if key.requires_grad or value.requires_grad:
        key, value = key.detach(), value.detach()
    key, value = stream.rounded(key), stream.rounded(value)
    stream.make_room(1)
    for number, row in enumerate(stream.rows):
        full = row.count > stream.window and row.length >= stream.hold
        mine = stream.recent if batch == 1 else stream.recent.narrow(1, number, 1)
        slot = mine.narrow(3, row.start + (row.turn if full else row.count), 1)  # [2, 1, H, 1, D]
        if full:
            _replace(stream, number, slot, ids[number])
        else:
            stream.note_groups(number, groups[number])
            row.count += 1
        slot_key, slot_value = slot.unbind()
        slot_key.copy_(key if batch == 1 else key.narrow(0, number, 1))
        slot_value.copy_(value if batch == 1 else value.narrow(0, number, 1))
        row.length, row.chunk, row.places, row.listed = row.length + 1, 1, None, ids[number]
    stream.chunk = 1
    return True


def _room(stream: KeyBuckets, row: Recent) -> bool:
    """Is the next token's place known without moving others: at the end of all, or where the oldest recent one is?"""
    return row.length < stream.hold or row.count <= stream.window + 1


def _replace(stream: KeyBuckets, number: int, slot: Tensor, listed: list[int]) -> None:
    """A row's oldest recent token, in slot [2, 1, H, 1, D], makes way for one with these groups: it is copied to the
    end of its bucket, unless it is a sink."""
    row, pool = stream.rows[number], stream.pool
    if row.pending > stream.window:  # they are all that is known of the recent tokens: not one may be lost
        stream.settle(number)
    if row.ids is None:
        row.ids = stream.recent_groups(number).tolist()
    if row.length - row.count >= stream.sinks:
        name = (number, *stream.bucket_name(row.ids[row.turn]))
        span = pool.spans.get(name)
        if span is None or span.used == span.room:
            pool.reserve({name: 1})
            span = pool.spans[name]
        pool.batched.narrow(3, span.start + span.used, 1).copy_(slot)
        span.used += 1
    row.ids[row.turn] = listed
    row.turn, row.pending = (row.turn + 1) % row.count, row.pending + 1


def serves(stream: KeyBuckets, problem: Problem, backend: str) -> bool:
    """Is the last chunk one real token per row, for a call that the cpu backend would get?"""
    if stream.chunk != 1 or not stream.recent.is_cpu or problem.softcap is not None:
        return False
    # what is recent is within the window: the stream's own, or for dense attention one that holds everything
    return backend in BACKENDS and all(row.chunk == 1 and row.count <= problem.window + 1 for row in stream.rows)


def attend_tokens(
    query: Tensor, stream: KeyBuckets, problem: Problem, groups: Tensor | None, want_lse: bool
) -> tuple[Tensor, Tensor]:
    """The last tokens' queries [B, Hq, 1, D] -> out [B, Hq, 1, D] in fp32 (fp64 stays) and lse [B, Hq, 1], rubbish
    unless wanted; they look into groups [B, 1, k], by default their own.

    Heads that share keys are rows of one call: every key is read once.
    """
    heads, pool = stream.recent.shape[2], stream.pool
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
        one_near, one_far = (near, far) if len(stream.rows) == 1 else (near[number, None], far[number, None])
        sinks = min(stream.sinks, row.length - row.count)  # those beyond the window
        if not apart and row.fronted != sinks:
            start = pool.spans[(number,)].start
            margin = stream.recent.select(1, number).narrow(2, row.start - sinks, sinks)
            margin.copy_(pool.data.narrow(2, start, sinks))
            row.fronted = sinks
        parts = [_flash(one_near, *_near(stream, number, 0 if apart else sinks), 0.0, False, scale=near_scale)]
        if groups is not None:
            listed = groups[number, 0].tolist()
        else:
            listed = row.listed or stream.query_groups(number, None)[0].tolist()
        names = stream.matching(number, listed)
        for name in [(number,), *names] if apart and sinks else names:
            span = pool.spans[name]
            used = span.used if len(name) > 1 else sinks
            if used:
                parts += _attend(one_far, pool.batched.narrow(3, span.start, used), far_scale)
        found.append(_join(parts, want_lse))
    out, lse = found[0] if len(found) == 1 else (torch.cat(x) for x in zip(*found, strict=True))
    return out.reshape(query.shape), lse.reshape(query.shape[:3]) if want_lse else lse


def _near(stream: KeyBuckets, number: int, sinks: int) -> tuple[Tensor, Tensor]:
    """The recent keys and values of a row, [1, H, n, D], with the sinks in front of them; made once, then the same
    until the buffer or the window moves."""
    row = stream.rows[number]
    begin, end = row.start - sinks, row.start + row.count
    held = row.near
    if held is None or held.buffer is not stream.recent or (held.begin, held.end) != (begin, end):
        key, value = stream.recent.narrow(1, number, 1).narrow(3, begin, end - begin)
        row.near = held = NearView(stream.recent, begin, end, key, value)
    return held.key, held.value


def _attend(q: Tensor, held: Tensor, scale: float) -> Iterator[tuple[Tensor, Tensor]]:
    """q [1, H, rows, D] against [2, 1, H, n, D], in parts [parts, H, rows, D]: a thread has at least a head of a part
    to read, and where heads do not share out evenly among the threads, long lists are cut until they do."""
    if held.dtype != q.dtype:
        for some in held.split(CONVERTED, 3):
            yield from _attend(q, some.to(q.dtype), scale)
        return
    heads, count = held.shape[2:4]
    parts = _shares(heads, torch.get_num_threads()) if count >= CUT else 1
    each = count // parts
    if parts > 1:
        size = (2, parts, heads, each, held.shape[4])
        step = held.stride()
        key, value = held.as_strided(size, (step[0], each * step[3], *step[2:]))
        yield _flash(q.expand(parts, -1, -1, -1), key, value, 0.0, False, scale=scale)
        if count == parts * each:
            return
        held = held.narrow(3, parts * each, count - parts * each)
    key, value = held.unbind()
    yield _flash(q, key, value, 0.0, False, scale=scale)


@cache
def _shares(heads: int, threads: int) -> int:
    """How many parts give every thread the same work, where that is much to gain."""
    return threads // gcd(heads, threads) if heads < 4 * threads else 1


def _join(parts: list[tuple[Tensor, Tensor]], want_lse: bool) -> tuple[Tensor, Tensor]:
    """Disjoint parts [parts, H, rows, D], none of them empty, as one softmax [1, H, rows, D]."""
    if parts[0][0].dtype != parts[0][1].dtype:
        parts = [(out.to(lse.dtype), lse) for out, lse in parts]
    (out, lse), *rest = parts
    if not rest:
        return out, lse
    if len(rest) == 1 and rest[0][0].shape[0] == 1:
        more, more_lse = rest[0]
        out = torch.lerp(out, more, torch.sigmoid(more_lse - lse).unsqueeze(-1))
        return out, torch.logaddexp(lse, more_lse) if want_lse else lse
    outs, lses = torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])
    out = (outs * torch.softmax(lses, 0).unsqueeze(-1)).sum(0, keepdim=True)
    return out, torch.logsumexp(lses, 0, keepdim=True) if want_lse else lse
