"""Both engines over a varlen primitive: all sequences of a call in a few launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from .call import Call, Gradients
from .choose import pick_engine
from .merge import add_sink_logits_, merge_
from .penalty import mismatch_width, widen
from .plan import make_plan
from .problem import Problem
from .recent import Recent
from .segments import Ranges, Segments, Stretches, band, matching, prefixes, ragged, triangle
from .stream import KeyBuckets

HEAD_SIZE = 256  # FlashAttention's limit
CHUNK = 1024  # rows of a triangle: half of it is computed for nothing
RAGGED_CHUNK = 128  # the same, where every row copies its keys


class VarlenOps(Protocol):
    """What a varlen backend provides, on [tokens, H, D] tensors; lse [H, tokens] fp32, -inf for a row without keys."""

    page: int  # lists of keys start at multiples of this

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, part: Segments, scale: float, softcap: float | None
    ) -> tuple[Tensor, Tensor]: ...

    def ranges(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        row_counts: list[int],
        key_starts: list[int],
        key_counts: list[int],
        scale: float,
        softcap: float | None,
    ) -> tuple[Tensor, Tensor]:
        """Segment n of the rows against all of k[key_starts[n] : key_starts[n] + key_counts[n]]; starts increase."""
        ...

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        part: Segments,
        scale: float,
        softcap: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...


def round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def penalty_fits(size: int, problem: Problem) -> bool:
    """Is there room for the triangle's columns within FlashAttention's head size, and nothing that bends logits?"""
    return problem.softcap is None and size + mismatch_width(problem) <= HEAD_SIZE


class VarlenRunner:
    """Runs a call, or a chunk of a stream, on a varlen primitive."""

    def __init__(self, ops: VarlenOps):
        self.ops = ops

    def _parts(self, call: Call, size: int) -> Iterator[Segments | Ranges]:
        problem, dtype = call.problem, call.query.dtype
        groups = [s.take(call.groups, 0) for s in call.sequences]
        engine = pick_engine(call, HEAD_SIZE - size)
        plans = [make_plan(engine, g, problem) for g in groups]
        if not call.distant_only:
            yield band(plans, groups, problem, dtype)
        if any(plan.causal for plan in plans):
            part = matching(plans, groups, problem, dtype)
            if part is not None:
                yield part
            return
        starts = [0]
        for g in groups[:-1]:
            starts.append(starts[-1] + g.shape[0])
        stretch = Stretches(groups, starts, starts, [0] * len(groups))
        fits = penalty_fits(size, problem)
        chunk = CHUNK if fits else RAGGED_CHUNK
        whole = prefixes(plans, groups, problem, chunk)
        if whole is not None:
            yield whole
        rest = triangle(stretch, problem, dtype, chunk) if fits else ragged(stretch, problem, chunk)
        if rest is not None:
            yield rest

    def forward(self, call: Call) -> tuple[Tensor, Tensor]:
        query, value, problem = call.query, call.value, call.problem
        batch, heads, tokens, _ = query.shape
        whole = query.new_zeros(batch, heads, tokens, value.shape[-1])
        whole_lse = query.new_full((batch, heads, tokens), float("-inf"), dtype=torch.float32)
        if not call.sequences:
            return whole, whole_lse
        size = round_up(max(query.shape[-1], value.shape[-1]), 8)
        q, k, v = (_pack(call, x, size) for x in (query, call.key, value))
        out = q.new_zeros(q.shape, dtype=torch.float32)
        lse = q.new_full((heads, q.shape[0]), float("-inf"), dtype=torch.float32)
        for part in self._parts(call, size):
            self._fold(part, q, k, v, problem, out, lse)
        if problem.sink_logits is not None:
            add_sink_logits_(out.transpose(0, 1), lse, problem.sink_logits)
        start = 0
        for s in call.sequences:
            rows = slice(start, start + s.length)
            s.put(whole, 1, out[rows, :, : value.shape[-1]].transpose(0, 1).to(query.dtype))
            s.put(whole_lse, 1, lse[:, rows])
            start += s.length
        return whole, whole_lse

    def _fold(
        self, part: Segments | Ranges, q: Tensor, k: Tensor, v: Tensor, problem: Problem, out: Tensor, lse: Tensor
    ) -> None:
        """Compute one part and merge it: out [tokens, H, D], lse [H, tokens]."""
        if isinstance(part, Ranges):
            scale, factor = problem.logit_scale(distant=True)
            starts, place = [], 0
            for keys in part.key_lists:
                starts.append(place)
                place += round_up(keys.numel(), self.ops.page)
            listed = torch.zeros(place, dtype=torch.long, device=q.device)  # what pads a page is read, then dropped
            for start, keys in zip(starts, part.key_lists, strict=True):
                listed[start : start + keys.numel()] = keys
            more, more_lse = self.ops.ranges(
                _scaled(q[part.rows], factor),
                k[listed],
                v[listed],
                part.row_counts,
                [starts[n] for n in part.lists],
                part.key_counts,
                scale,
                problem.softcap,
            )
        else:
            scale, factor = problem.logit_scale(part.distant)
            more, more_lse = self.ops.forward(*_inputs(part, q, k, v, factor), part, scale, problem.softcap)
        merge_tokens_(out, lse, part.rows, more[..., : out.shape[-1]], more_lse)

    def backward(self, call: Call, grad: Tensor, out: Tensor, lse: Tensor) -> Gradients:
        problem = call.problem
        found = [torch.zeros_like(x) for x in (call.query, call.key, call.value)]
        if not call.sequences:
            return Gradients(found[0], found[1], found[2], lse.new_zeros(call.query.shape[1]))
        size = round_up(max(call.query.shape[-1], call.value.shape[-1]), 8)
        q, k, v, d, o = (_pack(call, x, size) for x in (call.query, call.key, call.value, grad, out))
        merged = torch.cat([s.take(lse, 1) for s in call.sequences], 1)
        dq, dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))
        slope = dq.new_zeros(q.shape[1])
        for part in self._plain(call, size):
            scale, factor = problem.logit_scale(part.distant)
            some_q, some_k, some_v = _inputs(part, q, k, v, factor)
            width = some_q.shape[-1]
            some_d, some_o = (widen(_pick(x, part.rows), None, width) for x in (d, o))
            some_lse = merged if part.rows is None else merged[:, part.rows]
            got = self.ops.backward(
                some_d, some_q, some_k, some_v, some_o, some_lse.contiguous(), part, scale, problem.softcap
            )
            part_q, part_k, part_v = (x[..., :size].float() for x in got)
            if part.distant or problem.temperature_scope == "all":
                slope += (part_q * some_q[..., :size]).sum((0, 2))
            _add(dq, part.rows, _scaled(part_q, factor))
            _add(dk, part.keys, part_k)
            _add(dv, part.keys, part_v)
        for whole, packed in zip(found, (dq, dk, dv), strict=True):
            start = 0
            for s in call.sequences:
                s.put(whole, 1, packed[start : start + s.length, :, : whole.shape[-1]].transpose(0, 1))
                start += s.length
        return Gradients(found[0], found[1], found[2], slope)

    def _plain(self, call: Call, size: int) -> Iterator[Segments]:
        for part in self._parts(call, size):
            if isinstance(part, Ranges):
                yield from part.by_chunk()
            else:
                yield part

    def attend_stream(
        self, query: Tensor, stream: KeyBuckets, problem: Problem, groups: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The last chunk's queries [B, Hq, c, D] -> out [B, Hq, c, D] fp32 and lse [B, Hq, c]; they look into groups
        [B, c, k], by default their own."""
        whole = query.new_zeros(query.shape, dtype=torch.float32)
        whole_lse = whole.new_full(query.shape[:3], float("-inf"))
        live = [(b, row) for b, row in enumerate(stream.rows) if row.chunk]
        if not live:
            return whole, whole_lse
        places = [slice(None) if row.places is None else row.places for _, row in live]
        q = torch.cat([query[b][:, place] for (b, _), place in zip(live, places, strict=True)], 1).transpose(0, 1)
        k, v = (
            torch.cat([x[b][:, row.start : row.start + row.count] for b, row in live], 1).transpose(0, 1)
            for x in (stream.recent_key, stream.recent_value)
        )
        out = q.new_zeros(q.shape, dtype=torch.float32)
        lse = q.new_full((q.shape[1], q.shape[0]), float("-inf"), dtype=torch.float32)
        row_counts, key_counts = [row.chunk for _, row in live], [row.count for _, row in live]
        window = Segments(None, None, row_counts, key_counts, causal=True, window=problem.window, distant=False)
        self._fold(window, q, k, v, problem, out, lse)
        looking = [stream.query_groups(b, groups) for b, _ in live]
        self._stream_past(q, looking, stream, live, problem, out, lse)
        self._stream_recent(q, k, v, looking, stream, live, problem, out, lse)
        start = 0
        for (b, row), place in zip(live, places, strict=True):
            part = slice(start, start + row.chunk)
            whole[b][:, place] = out[part].transpose(0, 1)
            whole_lse[b][:, place] = lse[:, part]
            start += row.chunk
        return whole, whole_lse

    def _stream_past(
        self,
        q: Tensor,
        looking: list[Tensor],
        stream: KeyBuckets,
        live: list[tuple[int, Recent]],
        problem: Problem,
        out: Tensor,
        lse: Tensor,
    ) -> None:
        """Everything before the chunk's window: prefixes of the pool's lists, read in place."""
        rows, row_counts, key_starts, key_counts = [], [], [], []
        begin = 0
        for (number, row), groups in zip(live, looking, strict=True):
            everyone = torch.arange(row.chunk, device=q.device)
            readers = stream.readers(number, groups)
            for name in sorted(n for n in stream.pool.spans if n[0] == number):
                span = stream.pool.spans[name]
                seen = span.used if len(name) > 1 else min(span.used, max(row.length - row.chunk - problem.window, 0))
                some = readers[name[1:]] if len(name) > 1 else everyone
                if seen and some.numel():
                    rows.append(some + begin)
                    row_counts.append(some.numel())
                    key_starts.append(span.start)
                    key_counts.append(seen)
            begin += row.chunk
        if not row_counts:
            return
        scale, factor = problem.logit_scale(distant=True)
        chosen = torch.cat(rows)
        keys, values = stream.pool.key.transpose(0, 1), stream.pool.value.transpose(0, 1)
        more, more_lse = self.ops.ranges(
            _scaled(q[chosen], factor), keys, values, row_counts, key_starts, key_counts, scale, problem.softcap
        )
        merge_tokens_(out, lse, chosen, more, more_lse)

    def _stream_recent(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        looking: list[Tensor],
        stream: KeyBuckets,
        live: list[tuple[int, Recent]],
        problem: Problem,
        out: Tensor,
        lse: Tensor,
    ) -> None:
        """Distant pairs within the recent tokens; a chunk of one has none."""
        groups, starts, row_starts, positions = [], [], [], []
        key_begin = row_begin = 0
        for number, row in live:
            groups.append(stream.recent_groups(number))
            starts.append(key_begin)
            row_starts.append(row_begin - (row.count - row.chunk))
            positions.append(row.first)
            key_begin, row_begin = key_begin + row.count, row_begin + row.chunk
        stretch = Stretches(groups, starts, row_starts, positions, looking)
        most = max(row.count for _, row in live)
        if penalty_fits(q.shape[-1], problem):
            part = triangle(stretch, problem, q.dtype, most)
        else:
            part = ragged(stretch, problem, most)
        if part is not None:
            self._fold(part, q, k, v, problem, out, lse)


def merge_tokens_(out: Tensor, lse: Tensor, rows: Tensor | None, more: Tensor, more_lse: Tensor) -> None:
    """Fold rows (token numbers; a token may come several times) into out [tokens, H, D] and lse [H, tokens]."""
    if rows is None:
        merge_(out.transpose(0, 1), lse, more.transpose(0, 1), more_lse)
        return
    order = torch.argsort(rows, stable=True)
    ordered = rows[order]
    place = torch.arange(rows.numel(), device=rows.device)
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    turn = place - torch.where(fresh, place, 0).cummax(0).values  # how many times the token came before
    for number in range(int(turn.max()) + 1):
        chosen = order[turn == number]
        tokens = rows[chosen]
        now, now_lse = out[tokens].transpose(0, 1), lse[:, tokens]
        merge_(now, now_lse, more[chosen].transpose(0, 1), more_lse[:, chosen])
        out[tokens], lse[:, tokens] = now.transpose(0, 1), now_lse


def _pack(call: Call, x: Tensor, size: int) -> Tensor:
    """[B, H, T, D] -> [tokens, H, size], the call's sequences end to end, padded with zeros."""
    parts = [s.take(x.detach(), 1) for s in call.sequences]
    packed = torch.cat(parts, 1) if len(parts) != 1 else parts[0]
    packed = packed.transpose(0, 1)
    return packed if packed.shape[-1] == size and packed.stride(-1) == 1 else widen(packed, None, size)


def _pick(x: Tensor, rows: Tensor | None) -> Tensor:
    return x if rows is None else x[rows]


def _scaled(q: Tensor, factor: Tensor | None) -> Tensor:
    return q if factor is None else q * factor.to(q.dtype)[:, None]


def _inputs(part: Segments, q: Tensor, k: Tensor, v: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a part, penalty columns included."""
    q, k, v = _scaled(_pick(q, part.rows), factor), _pick(k, part.keys), _pick(v, part.keys)
    if part.sides is None:
        return q, k, v
    size = round_up(q.shape[-1] + part.sides[0].shape[1], 8)
    return widen(q, part.sides[0][:, None], size), widen(k, part.sides[1][:, None], size), widen(v, None, size)


def _add(x: Tensor, index: Tensor | None, part: Tensor) -> None:
    if index is None:
        x += part
    else:
        x.index_add_(0, index, part)
