"""Cells put together: a row per method and task, with what differs from full attention on the same items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..methods import label, parse_methods
from .intervals import mean_error, paired, wilson

FULL = label(*parse_methods("full")[0])


def summarise(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the order of the cells. Means are over cells, intervals over items; `over_full` compares what both methods
    have been asked, and is None where full attention has not."""
    rows = []
    for method, task in dict.fromkeys((cell["method"], cell["task"]) for cell in cells):
        own = [cell for cell in cells if (cell["method"], cell["task"]) == (method, task)]
        scores = [score for cell in own for score in cell["scores"]]
        rows.append(
            {
                "method": method,
                "task": task,
                "cells": len(own),
                "items": len(scores),
                "right": sum(cell["right"] for cell in own),
                "interval": list(wilson(sum(scores), len(scores))),
                **{part: _mean(own, part) for part in ("accuracy", "tokens", "nll", "density")},
                "seconds": sum(cell["seconds"] for cell in own),
                "over_full": over_full(own, cells) if method != FULL else None,
            }
        )
    return rows


def over_full(own: Sequence[dict[str, Any]], cells: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Paired, item by item: the difference of scores and of negative log-likelihoods."""
    full = {_place(cell): cell for cell in cells if cell["method"] == FULL}
    pairs = [(cell, full[_place(cell)]) for cell in own if _place(cell) in full]
    if not pairs:
        return None
    nll, error = mean_error([a - b for x, y in pairs for a, b in zip(x["nlls"], y["nlls"], strict=True)])
    ours, theirs = ([score for pair in pairs for score in pair[side]["scores"]] for side in (0, 1))
    return {**paired(ours, theirs), "items": len(ours), "nll": nll, "nll_error": error}


def _place(cell: dict[str, Any]) -> tuple[Any, ...]:
    return cell["task"], cell["length"], cell["depth"]


def _mean(cells: Sequence[dict[str, Any]], part: str) -> float:
    return sum(cell[part] for cell in cells) / len(cells)
