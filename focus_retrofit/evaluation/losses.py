"""Loss of every token of a text without the logits of all of them at once: 32K tokens of a vocabulary of 49K would be
6.4 GB. The model's own head is asked for a slice at a time, so that what it does after the matrix is done too."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

SLICE = 1024  # rows of logits that are there together


@torch.inference_mode()
def token_losses(model: Any, ids: Tensor) -> tuple[Tensor, float]:
    """Losses [T - 1] of a text [T] in one pass without a cache, on the CPU; and seconds of the pass."""
    start = time.perf_counter()
    with whole_states(model) as kept:
        logits = model(ids[None], use_cache=False).logits
    seconds = time.perf_counter() - start
    states = kept.get("output")
    if states is None:  # a model without a body of its own: all logits were there
        return _losses(logits[0, :-1], ids[1:]).cpu(), seconds
    parts = [_losses(rows[0], targets) for rows, targets in _sliced(model, states, ids)]
    return torch.cat(parts).cpu(), seconds


@torch.inference_mode()
def losses_in_chunks(
    model: Any, ids: Tensor, cache: Any, chunk: int = 4096, on_chunk: Callable[[int], Any] = lambda tokens: None
) -> Tensor:
    """Losses [T - 1] of a text [T] read chunk by chunk through an empty cache: memory is that of the cache and a chunk.
    `on_chunk` is told how many tokens were read."""
    parts = []
    for begin in range(0, len(ids), chunk):
        piece = ids[begin : begin + chunk + 1]  # one more than is read: the target of the last
        with whole_states(model) as kept:
            logits = model(piece[None, :chunk], past_key_values=cache, use_cache=True).logits
        states = kept.get("output")
        if states is None:
            parts.append(_losses(logits[0, : len(piece) - 1], piece[1:]).cpu())
        else:
            parts += [_losses(rows[0], targets).cpu() for rows, targets in _sliced(model, states, piece)]
        on_chunk(min(chunk, len(ids) - begin))
    return torch.cat(parts)


@contextmanager
def whole_states(model: Any) -> Iterator[dict[str, Any]]:
    """Inside, the head sees one row; the body's output with all rows [B, T, d] is kept under 'output'."""
    kept: dict[str, Any] = {}
    body: nn.Module = model.base_model
    if body is model:
        yield kept
        return

    def cut(module: nn.Module, args: Any, output: Any) -> Any:
        kept["output"] = output
        return _with_states(output, output.last_hidden_state[:, -1:])

    hook = body.register_forward_hook(cut)
    try:
        yield kept
    finally:
        hook.remove()


def _sliced(model: Any, output: Any, ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(logits [B, c, V], targets [c]) by slices of the body's output for ids [T]; its last row has no target, unless
    there is one more id than rows."""
    states, body = output.last_hidden_state, model.base_model
    own = vars(body).get("forward")  # where accelerate put one
    targets = ids[1:]
    try:
        for begin in range(0, min(states.shape[1], len(targets)), SLICE):
            wanted = targets[begin : begin + SLICE]
            rows = states[:, begin : begin + len(wanted)]
            body.forward = lambda *args, rows=rows, **kwargs: _with_states(output, rows)
            yield model(ids[None, begin : begin + len(wanted)], use_cache=False).logits, wanted
    finally:
        vars(body).pop("forward", None)
        if own is not None:
            body.forward = own


def _with_states(output: Any, states: Tensor) -> Any:
    changed = copy.copy(output)
    changed["last_hidden_state"] = states
    return changed


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    pairs = zip(logits.split(SLICE), targets.split(SLICE), strict=True)
    return torch.cat([cross_entropy(x.float(), y.to(x.device), reduction="none") for x, y in pairs])
