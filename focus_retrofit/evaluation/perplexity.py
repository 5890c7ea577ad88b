"""Perplexity over windows of text, by position too, beside the density that was really computed for it and the time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm

BINS = 8  # equal ranges of positions that losses are averaged over
PIECE = 1024  # rows of logits that are looked at together

Cell = dict[str, Any]


def perplexity(model: Any, windows: Iterable[Tensor], what: str, scored: int | None = None) -> dict[str, Any]:
    """exp of the mean loss over windows [T]: see `read_window` and `summarise`."""
    return summarise([read_window(model, x, scored) for x in tqdm(windows, desc=what, unit=" windows", leave=False)])


@torch.inference_mode()
def read_window(model: Any, window: Tensor, scored: int | None = None) -> Cell:
    """Losses of one window [T], or of its last `scored` tokens, all of which then have at least T - scored before
    them; seconds of the pass; with Focus also the density, and how many tokens each group of a layer has."""
    ids = window[None].to(model.device)
    start = time.perf_counter()
    logits = model(ids, use_cache=False).logits[0, :-1]
    seconds = time.perf_counter() - start
    pieces = zip(logits.split(PIECE), ids[0, 1:].split(PIECE), strict=True)
    losses = torch.cat([cross_entropy(x.float(), target, reduction="none") for x, target in pieces]).cpu()
    first = len(losses) - min(scored or len(losses), len(losses))
    bins = [part[max(first - begin, 0) :] for begin, part in _parts(losses)]
    cell: Cell = {
        "loss": float(losses[first:].mean()),
        "by_position": [float(x.mean()) if len(x) else None for x in bins],
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


def _parts(losses: Tensor) -> list[tuple[int, Tensor]]:
    edges = [len(losses) * n // BINS for n in range(BINS + 1)]
    return [(begin, losses[begin:end]) for begin, end in pairwise(edges)]


def summarise(cells: Sequence[Cell]) -> dict[str, Any]:
    """Perplexity with a standard error from the windows, the same by position, mean density, the fastest pass, and the
    largest share that a group has in a layer."""
    losses = [cell["loss"] for cell in cells]
    row: dict[str, Any] = {**_mean(losses), "losses": losses}
    bins = zip(*(cell["by_position"] for cell in cells), strict=True)
    row["by_position"] = [None if None in losses else _mean(list(losses)) for losses in bins]
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
