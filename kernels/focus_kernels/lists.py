"""Attention over given lists: who reads which keys is said by the caller, as buckets of rows, keys and reach.

For those who plan over more than one machine's tokens; on tile primitives, without gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

import torch
from torch import Tensor

from .backends import BackendError
from .errors import FocusError
from .plan import Bucket, Plan
from .problem import Problem
from .tiled import Tiled
from .tiles import TileOps

TILED = ("cpu", "eager")


def tile_ops(backend: str, device: torch.device, softcap: float | None) -> TileOps:
    """The tile primitive of a backend; 'auto' is the fused one wherever it can serve."""
    name = backend.partition(":")[0]
    fused = device.type == "cpu" and softcap is None
    if name == "auto":
        name = "cpu" if fused else "eager"
    if name not in TILED:
        raise BackendError(f"backend {backend!r} has no tiles to run lists on; use 'auto' or one of {', '.join(TILED)}")
    if name == "cpu" and not fused:
        reason = f"the tensors are on {device}" if device.type != "cpu" else f"it does not know softcap={softcap}"
        raise BackendError(f"backend {backend!r} cannot serve this call: {reason}; use 'eager'")
    ops: TileOps = import_module(f".backends.{name}", __package__).runner.make_ops(softcap)
    return ops


def attend_lists(
    query: Tensor, key: Tensor, value: Tensor, lists: Sequence[Bucket], problem: Problem, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Every list's rows against the first `reach` of its keys, as distant pairs: one softmax per row over all lists.

    query [Hq, M, D], key [Hkv, N, D], value [Hkv, N, Dv]; a list's rows and keys are places in these, and no pair may
    be in two lists. Returns out [Hq, M, Dv] and lse [Hq, M], 0 and -inf for rows in no list, in fp32 (fp64 stays). Of
    the problem, scale, temperature and softcap count.
    """
    if any(x.requires_grad for x in (query, key, value)) and torch.is_grad_enabled():
        raise FocusError("attend_lists has no gradient: call it under torch.no_grad()")
    ops = tile_ops(backend, query.device, problem.softcap)
    rows = sum(one.rows.numel() for one in lists)
    grown = sum(int(one.reach[-1]) - int(one.reach[0]) for one in lists)
    top_k = max(round(rows / grown), 1) if grown else 1  # rows to one more key: the width of a staircase
    lengths = [one.rows.numel() for one in lists]
    share = max(lengths, default=1) / max(query.shape[1], 1)  # of the rows in a list: the height of its tiles
    shape = replace(problem, window=0, sinks=0, top_k=top_k, num_groups=max(round(top_k / share), 1), match="probe")
    disjoint = len(lists) < 2 or torch.cat([one.rows for one in lists]).unique().numel() == rows
    nothing = torch.empty(0, 1, dtype=torch.long, device=query.device)
    tiled = Tiled(ops, query, key, value, nothing, Plan("chunked", tuple(lists), disjoint), shape)
    tiled.distant_only = True
    return tiled.forward()
