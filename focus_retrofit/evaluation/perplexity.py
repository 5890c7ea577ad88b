"""Perplexity over windows of text, by position too, beside the density that was really computed for it and the time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from .losses import token_losses

BINS = 8  # equal ranges of positions that losses are averaged over
FIRST = 256  # end of the first of the ranges that double

Cell = dict[str, Any]


def perplexity(model: Any, windows: Iterable[Tensor], what: str, scored: int | None = None) -> dict[str, Any]:
    """exp of the mean loss over windows [T]: see `read_window` and `summarise`."""
    return summarise([read_window(model, x, scored) for x in tqdm(windows, desc=what, unit=" windows", leave=False)])


@torch.inference_mode()
def read_window(model: Any, window: Tensor, scored: int | None = None) -> Cell:
    """Losses of one window [T], or of its last `scored` tokens, all of which then have at least T - scored before
    them; seconds of the pass; with Focus also the density, and how many tokens each group of a layer has."""
    losses, seconds = token_losses(model, window.to(model.device))
    first = len(losses) - min(scored or len(losses), len(losses))
    cell: Cell = {
        "loss": float(losses[first:].mean()),
        "by_position": _binned(losses, equal_edges(len(losses)), first),
        "by_doubling": _binned(losses, doubling_edges(len(losses)), first),
        "seconds": seconds,
    }
    focus = getattr(model, "focus", None)
    if focus is None or not focus.enabled:
        return {**cell, "density": 1.0, "distant": 1.0}
    lines = [line for line in focus.report().layers if line.layer in focus.layer_indices]
    for part in ("density", "distant"):
        cell[part] = sum(getattr(line, part) or 0.0 for line in lines) / len(lines)
    if all(line.shares for line in lines):
        groups = {index: focus.groups_seen(index).flatten() for index in focus.layer_indices}
        cell["groups"] = [torch.bincount(x, minlength=focus.config.num_groups).tolist() for x in groups.values()]
    return cell


def equal_edges(count: int) -> list[int]:
    return [count * n // BINS for n in range(BINS + 1)]


def doubling_edges(count: int) -> list[int]:
    """For tokens before position 256, 512, 1024, ... and the last of `count` losses, which has position `count`: where
    the positions end that a model was made for, a range ends too."""
    edges, edge = [0], FIRST
    while edge - 1 < count:
        edges.append(edge - 1)  # the first loss is that of position 1
        edge *= 2
    return [*edges, count]


def _binned(losses: Tensor, edges: list[int], first: int) -> list[float | None]:
    """Means between edges, of the losses from `first` on; None where none of a range is scored."""
    parts = [losses[max(begin, first) : end] for begin, end in pairwise(edges)]
    return [float(part.mean()) if len(part) else None for part in parts]


def summarise(cells: Sequence[Cell]) -> dict[str, Any]:
    """Perplexity with a standard error from the windows, the same by position, mean density, the fastest pass, and the
    largest share that a group has in a layer."""
    losses = [cell["loss"] for cell in cells]
    row: dict[str, Any] = {**_mean(losses), "losses": losses}
    for kind in ("by_position", "by_doubling"):
        if all(kind in cell for cell in cells):  # cells of older files have but the first
            bins = zip(*(cell[kind] for cell in cells), strict=True)
            row[kind] = [None if None in losses else _mean(list(losses)) for losses in bins]
    row["seconds"] = min(cell["seconds"] for cell in cells)
    for part in ("density", "distant"):
        row[part] = sum(cell[part] for cell in cells) / len(cells)
    if all("groups" in cell for cell in cells):
        counts = torch.tensor([cell["groups"] for cell in cells]).sum(0)  # [layers, K]
        row["largest_group"] = float((counts / counts.sum(-1, keepdim=True)).max())
    return row


def _mean(losses: list[float]) -> dict[str, Any]:
    found = torch.tensor(losses, dtype=torch.float64)
    value = found.mean().exp().item()
    error = value * (found.std() / len(found) ** 0.5).item() if len(found) > 1 else None
    return {"perplexity": value, "standard_error": error}
