"""Bytes between processes: what runs sent against what the plan's formula says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from focus_kernels.errors import FocusError

from ..parallel.traffic import KINDS, expected_traffic

ARGUMENTS = (
    "tokens",
    "ranks",
    "num_groups",
    "top_k",
    "heads",
    "kv_heads",
    "head_size",
    "window",
    "sinks",
    "bytes_per_number",
)


def read_traffic(path: str | os.PathLike[str]) -> list[dict[str, Any]] | None:
    """Rows of a file of `scripts/parallel_traffic.py`; None if it is something else."""
    try:
        rows = json.loads(Path(path).read_text())["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sent = isinstance(rows, list) and bool(rows) and all(isinstance(row, dict) and "sent" in row for row in rows)
    return rows if sent else None


def check_traffic(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows name the arguments of `expected_traffic`, how many `layers` (1) were run, and the bytes `sent` by all ranks
    together, by kind. Gives predicted over measured of each kind that was sent and of the total, and how much less that
    is than a ring's."""
    found = []
    for number, row in enumerate(rows):
        missing = [name for name in (*ARGUMENTS, "sent") if name not in row]
        if missing:
            raise FocusError(f"row {number} of the traffic does not state {', '.join(missing)}")
        layers = row.get("layers", 1)
        expected = expected_traffic(**{name: row[name] for name in ARGUMENTS})
        sent = {kind: row["sent"].get(kind, 0) for kind in KINDS}
        total = sum(sent.values())
        if not total:
            raise FocusError(f"row {number} of the traffic sent nothing: there is nothing to compare")
        ratios = {kind: layers * expected[kind] / bytes_ for kind, bytes_ in sent.items() if bytes_}
        found.append(
            {
                **{name: row[name] for name in ("tokens", "ranks", "num_groups", "top_k")},
                "measured": total,
                "predicted": layers * expected["total"],
                "ratio": layers * expected["total"] / total,
                "ratios": ratios,
                "less_than_ring": layers * expected["ring"] / total,
            }
        )
    return found
