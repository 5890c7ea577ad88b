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

from . import contain
from .problem import Problem, check_groups, cooled_scale
from .recent import NearView, Recent
from .tiles import CONVERTED

if TYPE_CHECKING:
    from .stream import KeyBuckets

Asked = tuple[Tensor, float]  # queries and the scale of their logits
Part = tuple[Tensor, Tensor]  # out and logsumexp
CUT = 4096  # keys of a list that is worth cutting
BACKENDS = ("auto", "cpu", "cpu:chunked")
_flash = torch._scaled_dot_product_flash_attention_for_cpu


def append_token(stream: KeyBuckets, key: Tensor, value: Tensor, groups: Tensor, padding_mask: Tensor | None) -> bool:
    """Take in a chunk of one real token per row, if that is what it is; else leave it to the general way."""
    if not _fits(stream, key, value) or groups.shape != (key.shape[0], 1, stream.groups.shape[2]):
        return False
    if padding_mask is not None and (padding_mask.shape != groups.shape[:2] or not bool(padding_mask.all())):
        return False
    ids = [listed for (listed,) in groups.tolist()]
    if any(min(listed) < 0 or max(listed) >= stream.num_groups or len(set(listed)) < len(listed) for listed in ids):
        check_groups(groups, stream.num_groups)
    if key.requires_grad or value.requires_grad:
        key, value = key.detach(), value.detach()
    _take(stream, stream.rounded(key), stream.rounded(value), ids)
    return True


def attend_next(
    query: Tensor,
    stream: KeyBuckets,
    key: Tensor,
    value: Tensor,
    groups: list[list[int]],
    *,
    scale: float,
    temperature: float | Tensor | None = None,
    temperature_scope: str = "distant",
) -> Tensor | None:
    """`append` and `attend_chunk` in one, for a real token per row on a CPU, query and out [B, Hq, 1, D], with its k
    different groups as a list per row; other arguments as theirs. None, and nothing is taken in, where it is not for
    this: for the general way."""
    if not stream.rows or stream.broken or not query.dtype == key.dtype == value.dtype:
        return None
    if not _fits(stream, key, value) or not contain.finite(key, value):
        return None
    if any(row.count > stream.window for row in stream.rows if row.length < stream.hold):
        return None
    _take(stream, stream.rounded(key), stream.rounded(value), groups)
    asked = _asked(query, scale, temperature, temperature_scope)
    return _attend_rows(stream, asked, None, want_lse=False)[0].to(query.dtype)


def _fits(stream: KeyBuckets, key: Tensor, value: Tensor) -> bool:
    """Is this one token per row, such as the stream holds, and is there a place for it without moving others?"""
    recent = stream.recent
    batch, heads, _, size = recent.shape[1:]
    shape = (batch, heads, 1, size)
    if key.shape != shape or value.shape != shape:
        return False
    if key.dtype != recent.dtype or not recent.is_cpu or not key.is_cpu or stream.key_size != stream.value_size:
        return False
    return all(row.length >= stream.sinks and _room(stream, row) for row in stream.rows)


def _take(stream: KeyBuckets, key: Tensor, value: Tensor, ids: list[list[int]]) -> None:
    """Put a token per row [B, H, 1, D], whose groups are ids [B, k], where the oldest recent one is, or at the end."""
    batch = key.shape[0]
    stream.make_room(1)
    for number, row in enumerate(stream.rows):
        if row.ids is None:
            row.ids = stream.recent_groups(number).tolist()
        full = row.count > stream.window and row.length >= stream.hold
        mine = stream.recent if batch == 1 else stream.recent.narrow(1, number, 1)
        slot = mine.narrow(3, row.start + (row.turn if full else row.count), 1)  # [2, 1, H, 1, D]
        if full:
            _replace(stream, number, slot, ids[number])
        else:
            row.ids.append(ids[number])
            row.count += 1
        slot_key, slot_value = slot.unbind()
        slot_key.copy_(key if batch == 1 else key.narrow(0, number, 1))
        slot_value.copy_(value if batch == 1 else value.narrow(0, number, 1))
        row.length, row.pending, row.chunk = row.length + 1, row.pending + 1, 1
        row.places, row.listed = None, ids[number]
    stream.chunk = 1


def _room(stream: KeyBuckets, row: Recent) -> bool:
    """Is the next token's place known without moving others: at the end of all, or where the oldest recent one is?"""
    return row.length < stream.hold or row.count <= stream.window + 1


def _replace(stream: KeyBuckets, number: int, slot: Tensor, listed: list[int]) -> None:
    """A row's oldest recent token, in slot [2, 1, H, 1, D], makes way for one with these groups: it is copied to the
    end of its bucket, unless it is a sink."""
    row, pool = stream.rows[number], stream.pool
    if row.pending > stream.window:  # they are all that is known of the recent tokens: not one may be lost
        stream.settle(number)
    assert row.ids is not None
    if row.length - row.count >= stream.sinks:
        name = (number, *stream.bucket_name(row.ids[row.turn]))
        span = pool.spans.get(name)
        if span is None or span.used == span.room:
            pool.reserve({name: 1})
            span = pool.spans[name]
        pool.batched.narrow(3, span.start + span.used, 1).copy_(slot)
        span.used += 1
    row.ids[row.turn] = listed
    row.turn = (row.turn + 1) % row.count


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

    In buckets heads that share keys are rows of one call: every key is read once. A window is read again from the
    cache of the processor, and more heads share out better among its threads.
    """
    asked = _asked(query, problem.scale, problem.temperature, problem.temperature_scope)
    listed = None if groups is None else [row for (row,) in groups.tolist()]
    return _attend_rows(stream, asked, listed, want_lse)


def _asked(query: Tensor, scale: float, temperature: float | Tensor | None, scope: str) -> tuple[Asked, Asked | None]:
    """query [B, Hq, 1, D] as it asks what is near, and what is far where only that feels a temperature."""
    if temperature is None or scope != "distant":
        return _scaled(query, *cooled_scale(scale, temperature)), None
    return (query, scale), _scaled(query, *cooled_scale(scale, temperature))


def _scaled(query: Tensor, scale: float, factor: Tensor | None) -> Asked:
    """query times a factor per head, and the scale that is left."""
    return (query if factor is None else query * factor.to(query.dtype).view(-1, 1, 1)), scale


def _attend_rows(
    stream: KeyBuckets, asked: tuple[Asked, Asked | None], groups: list[list[int]] | None, want_lse: bool
) -> tuple[Tensor, Tensor]:
    """As `attend_tokens`, for queries as they ask what is near and what is far."""
    apart = asked[1] is not None  # then sinks beyond the window are far
    near, far = asked[0], asked[1] or asked[0]
    pool, shape = stream.pool, near[0].shape
    found = []
    for number, row in enumerate(stream.rows):
        (one_near, near_scale), (one_far, far_scale) = near, far
        if shape[0] > 1:
            one_near, one_far = one_near[number, None], one_far[number, None]
        sinks = min(stream.sinks, row.first)  # those beyond the window
        if not apart and row.fronted != sinks:
            start = pool.spans[(number,)].start
            margin = stream.recent.select(1, number).narrow(2, row.start - sinks, sinks)
            margin.copy_(pool.data.narrow(2, start, sinks))
            row.fronted = sinks
        parts: list[Part] = [
            _flash(one_near, *_near(stream, number, 0 if apart else sinks), 0.0, False, scale=near_scale)
        ]
        row.read = row.count + sinks
        if row.first > sinks or (apart and sinks):
            heads = stream.recent.shape[2]
            folded = one_far.reshape(1, heads, -1, shape[3])
            parts = [(parts[0][0].view(folded.shape), parts[0][1].view(folded.shape[:3]))]
            listed = groups[number] if groups is not None else row.listed
            names = stream.matching(number, listed or stream.query_groups(number, None)[0].tolist())
            for name in [(number,), *names] if apart and sinks else names:
                span = pool.spans[name]
                used = span.used if len(name) > 1 else sinks
                if used:
                    parts += _attend(folded, pool.key, pool.value, span.start, used, far_scale)
                    row.read += used if len(name) > 1 else 0
        out, lse = _join(parts, want_lse)
        found.append((out.reshape(1, *shape[1:]), lse.reshape(1, *shape[1:3]) if want_lse else lse))
    if len(found) == 1:
        return found[0]
    return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found]) if want_lse else lse


def _near(stream: KeyBuckets, number: int, sinks: int) -> tuple[Tensor, Tensor]:
    """The recent keys and values of a row, [1, H, n, D], with the sinks in front of them; made once, then the same
    until the buffer or the window moves."""
    row = stream.rows[number]
    begin, end = row.start - sinks, row.start + row.count
    held = row.near
    if held is None or held.buffer is not stream.recent or (held.begin, held.end) != (begin, end):
        mine = stream.recent if len(stream.rows) == 1 else stream.recent.narrow(1, number, 1)
        key, value = mine.narrow(3, begin, end - begin).unbind()
        row.near = held = NearView(stream.recent, begin, end, key, value)
    return held.key, held.value


def _attend(q: Tensor, keys: Tensor, values: Tensor, start: int, count: int, scale: float) -> Iterator[Part]:
    """q [1, H, rows, D] against `count` of the keys and values [H, n, D], in parts [parts, H, rows, D]: a thread has at
    least a head of a part to read, and where heads do not share out evenly among the threads, long lists are cut until
    they do."""
    if keys.dtype != q.dtype:
        for first in range(start, start + count, CONVERTED):
            some = min(CONVERTED, start + count - first)
            key, value = (x.narrow(1, first, some).to(q.dtype) for x in (keys, values))
            yield from _attend(q, key, value, 0, some, scale)
        return
    (heads, _, size), (step, row, _) = keys.shape, keys.stride()
    parts = _shares(heads, torch.get_num_threads()) if count >= CUT else 1
    each = count // parts
    shape, steps = (parts, heads, each, size), (each * row, step, row, 1)
    key = keys.as_strided(shape, steps, keys.storage_offset() + start * row)
    value = values.as_strided(shape, steps, values.storage_offset() + start * row)
    yield _flash(q if parts == 1 else q.expand(parts, -1, -1, -1), key, value, 0.0, False, scale=scale)
    if count > parts * each:
        yield from _attend(q, keys, values, start + parts * each, count - parts * each, scale)


@cache
def _shares(heads: int, threads: int) -> int:
    """How many parts give every thread the same work, where that is much to gain."""
    return threads // gcd(heads, threads) if heads < 4 * threads else 1


def _join(parts: list[Part], want_lse: bool) -> Part:
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
