"""No speed without correctness: chosen rows of what is timed, against the contract in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from ..reference import matches
from .problems import Layer


class Red(Exception):
    """The timed method gives a wrong answer."""


def oracle_rows(layer: Layer, rows: list[int]) -> Tensor:
    """[Hq, len(rows), D] of the contract, each row by itself in float64."""
    q, k, v = (x[0].double() for x in layer.tensors)
    repeat = layer.q_heads // layer.kv_heads
    groups = layer.groups[0]
    outs = []
    for row in rows:
        j = torch.arange(row + 1, device=q.device)
        match = matches(groups[row : row + 1], groups[: row + 1], layer.match)[0]
        seen = ((row - j <= layer.window) | (j < layer.sinks) | match).nonzero()[:, 0]
        keys, values = (x[:, seen].repeat_interleave(repeat, 0) for x in (k, v))
        logits = (keys @ q[:, row, :, None])[..., 0] * layer.size**-0.5
        outs.append((torch.softmax(logits, -1)[:, None] @ values)[:, 0])
    return torch.stack(outs, 1)


def check(layer: Layer, out: Tensor, name: str) -> float:
    """The largest error over rows spread over the sequence; raises Red above what the precision explains."""
    places = torch.linspace(0, layer.tokens - 1, 9).long().tolist()
    rows = sorted({*places, min(layer.window + 1, layer.tokens - 1), min(layer.window * 2, layer.tokens - 1)})
    want = oracle_rows(layer, rows)
    error = float((out[0, :, rows].double() - want).abs().max())
    allowed = 40 * torch.finfo(layer.dtype).eps * float(want.abs().max())
    if not error <= allowed:
        raise Red(f"{name} at {layer.tokens} tokens: error {error:.2e}, allowed {allowed:.2e}")
    return error
