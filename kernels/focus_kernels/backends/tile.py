"""Backends made of a tile primitive: each sequence by itself, in views wherever its tokens are contiguous."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..call import Call, Gradients
from ..choose import pick_engine
from ..merge import add_sink_logits_
from ..plan import make_plan
from ..problem import Problem
from ..stream import KeyBuckets
from ..stream_tiles import attend_row
from ..tiled import Tiled
from ..tiles import TileOps


class TileRunner:
    """Runs a call on tiles; `make_ops` gives the primitive for a softcap (or refuses it earlier)."""

    def __init__(self, make_ops: Callable[[float | None], TileOps]):
        self.make_ops = make_ops

    def forward(self, call: Call) -> tuple[Tensor, Tensor]:
        query, value = call.query, call.value
        high = torch.float64 if query.dtype == torch.float64 else torch.float32
        batch, heads, tokens, _ = query.shape
        if _whole(call):
            out, lse = (x[None] for x in self._forward(call, 0))
        else:
            out = query.new_zeros(batch, heads, tokens, value.shape[-1], dtype=high)
            lse = query.new_full((batch, heads, tokens), float("-inf"), dtype=high)
            for number, sequence in enumerate(call.sequences):
                part, part_lse = self._forward(call, number)
                sequence.put(out, 1, part)
                sequence.put(lse, 1, part_lse)
        return out.to(query.dtype), lse

    def _tiled(self, call: Call, number: int) -> Tiled:
        sequence, problem = call.sequences[number], call.problem
        q, k, v = (_rows(sequence.take(x.detach(), 1)) for x in (call.query, call.key, call.value))
        groups = sequence.take(call.groups, 0)
        plan = make_plan(pick_engine(call), groups, problem)
        tiled = Tiled(self.make_ops(problem.softcap), q, k, v, groups, plan, problem)
        tiled.distant_only = call.distant_only
        return tiled

    def _forward(self, call: Call, number: int) -> tuple[Tensor, Tensor]:
        out, lse = self._tiled(call, number).forward()
        if call.problem.sink_logits is not None:
            add_sink_logits_(out, lse, call.problem.sink_logits)
        return out, lse

    def backward(self, call: Call, grad: Tensor, out: Tensor, lse: Tensor) -> Gradients:
        if _whole(call):
            parts = self._tiled(call, 0).backward(grad[0], out[0], lse[0])
            q, k, v = (x[None].to(call.query.dtype) for x in parts[:3])
            return Gradients(q, k, v, parts.slope)
        found = [torch.zeros_like(x) for x in (call.query, call.key, call.value)]
        slope = lse.new_zeros(call.query.shape[1])
        for number, sequence in enumerate(call.sequences):
            parts = self._tiled(call, number).backward(
                sequence.take(grad, 1),
                sequence.take(out, 1),
                sequence.take(lse, 1),
            )
            for whole, part in zip(found, parts[:3], strict=True):
                sequence.put(whole, 1, part)
            slope += parts.slope
        return Gradients(found[0], found[1], found[2], slope)

    def attend_stream(
        self, query: Tensor, stream: KeyBuckets, problem: Problem, groups: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The last chunk's queries [B, Hq, c, D] -> out [B, Hq, c, D] in fp32 (fp64 stays) and lse [B, Hq, c]; they
        look into groups [B, c, k], by default their own."""
        high = torch.float64 if query.dtype == torch.float64 else torch.float32
        ops = self.make_ops(problem.softcap)
        first = stream.rows[0]
        if len(stream.rows) == 1 and first.chunk and first.places is None:  # no copy into a batch is needed
            part, part_lse = attend_row(ops, _rows(query[0]), stream.query_groups(0, groups), stream, 0, problem)
            return part[None], part_lse[None]
        out = torch.zeros_like(query, dtype=high)
        lse = query.new_full(query.shape[:3], float("-inf"), dtype=high)
        for number, row in enumerate(stream.rows):
            if not row.chunk:
                continue
            places = slice(None) if row.places is None else row.places
            q, looking = _rows(query[number][:, places]), stream.query_groups(number, groups)
            part, part_lse = attend_row(ops, q, looking, stream, number, problem)
            out[number][:, places], lse[number][:, places] = part, part_lse
        return out, lse


def _whole(call: Call) -> bool:
    """One sequence and nothing else: no copy into a batch is needed."""
    return call.query.shape[0] == len(call.sequences) == 1 and call.sequences[0].length == call.query.shape[2]


def _rows(x: Tensor) -> Tensor:
    """Rows of a head must be contiguous for the primitives; anything a model gives is."""
    return x if x.stride(-1) == 1 else x.contiguous()
