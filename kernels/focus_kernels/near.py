"""What every row of a run of tokens sees without a group: its window, and the sinks beyond it. On a tile primitive."""

from __future__ import annotations

import torch
from torch import Tensor

from .problem import Problem
from .tiles import TileOps, attend
from .tiling import band_tiles, sink_tiles


def attend_near(
    ops: TileOps,
    near: Tensor,
    far: Tensor,
    keys: Tensor,
    values: Tensor,
    sinks: tuple[Tensor, Tensor] | None,
    position: int,
    problem: Problem,
) -> tuple[Tensor, Tensor]:
    """Queries from `position` on, near [Hq, m, D] for the window and far for the sinks (they differ by a temperature)
    -> out [Hq, m, D], in memory as [m, Hq, D], and lse [Hq, m], in fp32 (fp64 stays).

    keys and values [Hkv, N, D] are the tokens just before the rows, at most `window`, and the rows' own; sinks the
    first tokens', which may be None where no row is beyond the window.
    """
    heads, rows, size = near.shape
    history, window = keys.shape[1] - rows, problem.window
    high = torch.float64 if near.dtype == torch.float64 else torch.float32
    out = near.new_empty(rows, heads, size, dtype=high).transpose(0, 1)
    lse = near.new_empty(heads, rows, dtype=high)
    scale = problem.logit_scale(distant=False)[0]
    for start, key, tile in band_tiles(keys.shape[1], window, near.dtype, near.device, history):
        some = slice(start - history, start - history + tile.count * tile.size)
        attend(ops, [tile], near[:, some], keys[:, key:], values[:, key:], scale, out[:, some], lse[:, some])

    scale = problem.logit_scale(distant=True)[0]
    start = max(window + 1 - position, 0)  # the first query with a distant key
    if sinks is not None and problem.sinks and start < rows:
        tiles = sink_tiles(rows - start, position + start, window, problem.sinks, near.dtype, near.device)
        attend(ops, tiles, far[:, start:], *sinks, scale, out[:, start:], lse[:, start:])
    return out, lse


def with_factor(query: Tensor, problem: Problem, distant: bool) -> Tensor:
    """query [Hq, m, D] times its heads' part of the scale, where heads have temperatures of their own."""
    factor = problem.logit_scale(distant)[1]
    return query if factor is None else query * factor.to(query.dtype)[:, None, None]
