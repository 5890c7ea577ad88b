"""What is said of a method's answers: how they differ from full attention's, item by item."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from focus_kernels import FocusError

ITEMS = ("values", "choices", "scores", "tokens")  # of a row: lists with an entry per item


def mean_and_error(values: Iterable[float]) -> tuple[float | None, float | None]:
    """Mean with its standard error; None where there are too few for one."""
    found = torch.tensor(list(values), dtype=torch.float64)
    if not len(found):
        return None, None
    return found.mean().item(), (found.std() / len(found) ** 0.5).item() if len(found) > 1 else None


def compare(rows: Iterable[dict[str, Any]]) -> None:
    """Adds to rows of one task how they differ from full attention on the same items, where that is among them.

    over_full: mean difference of the metric, paired, with its standard error. lost, gained: answers that were right and
    are wrong, and the other way round. changed: other choices, right or wrong. within_difference: the largest
    difference of a log-likelihood in items within the window, where there should be none. beyond_full: full attention's
    value of the items that are longer.
    """
    rows = list(rows)
    full = next((row for row in rows if row["kind"] == "full"), None)
    if full is None:
        return
    for row in rows:
        if row["tokens"] != full["tokens"]:
            raise FocusError(f"{row['task']}: {row['method']} was run on other items than full attention: run it anew")
        pairs = list(zip(full["values"], row["values"], strict=True))
        row["over_full"], row["over_full_error"] = mean_and_error(new - old for old, new in pairs)
        graded = all(value in (0, 1) for pair in pairs for value in pair)
        row["lost"] = sum(old > new for old, new in pairs) if graded else None
        row["gained"] = sum(old < new for old, new in pairs) if graded else None
        row["changed"] = sum(old != new for old, new in zip(full["choices"], row["choices"], strict=True))
        row["beyond_full"] = full["beyond_value"]
        row["within_difference"] = max(
            (
                abs(old - new)
                for tokens, before, after in zip(row["tokens"], full["scores"], row["scores"], strict=True)
                if tokens <= row["window"] + 1
                for old, new in zip(before, after, strict=True)
            ),
            default=None,
        )


def check_within(rows: Iterable[dict[str, Any]], tolerance: float = 1e-3) -> int:
    """Items within the window are the base model's by construction: an error where a log-likelihood differs by more
    than rounding. Of Focus only: not every other method promises it. Returns how many items were checked."""
    checked = 0
    for row in rows:
        difference = row.get("within_difference")
        if row["kind"] != "focus" or difference is None:
            continue
        if not difference <= tolerance:
            raise FocusError(
                f"{row['task']}: {row['method']} changes a log-likelihood by {difference:.2g} in an item within the "
                f"window of {row['window']}, where it must equal full attention (tolerance {tolerance:g})"
            )
        checked += row["items"] - row["beyond"]
    return checked


def without_items(row: dict[str, Any]) -> dict[str, Any]:
    """A row for people: without its lists of items."""
    return {name: value for name, value in row.items() if name not in ITEMS}
