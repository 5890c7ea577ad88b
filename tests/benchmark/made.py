"""Rows with times that are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from focus_retrofit.benchmark.rows import FOCUS, FULL, Peaks, make_row

SETUP = "a model, K = 8, k = 1"


def made(
    tokens: int,
    full: float | Sequence[float],
    focus: float | Sequence[float],
    part: str = "prefill",
    memory: tuple[int, int] | None = None,
    **facts: Any,
) -> dict[str, Any]:
    times = {name: [x] if isinstance(x, float) else list(x) for name, x in ((FULL + "sdpa", full), (FOCUS, focus))}
    common = {"setup": SETUP, "dtype": "float32", "device": "cpu", "threads": 2, **facts}
    share = {"density": 0.25, "attention_share": 0.8, "memory": None if memory is None else Peaks(*memory)}
    return make_row(part, tokens, times, default=FULL + "sdpa", **{**share, **common})


def record(*rows: dict[str, Any], threads: int = 2) -> dict[str, Any]:
    return {"schema": 2, "machine": {"processor": "x", "threads": threads}, "versions": {}, "rows": list(rows)}
