"""What was measured, from files of `focus-retrofit bench` and of the kernels' own benchmarks, as rows of one kind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from focus_kernels.errors import FocusError

from ..benchmark.records import read_bench
from ..benchmark.rows import Row


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """Rows of a file; of several forms of Focus, or of full attention, the fastest."""
    try:
        record = json.loads(Path(path).read_text())
    except (OSError, ValueError):
        record = None
    if isinstance(record, dict) and isinstance(record.get("layer"), dict) and isinstance(record.get("results"), list):
        try:
            return _decode(record) if record.get("schema") == "decode-1" else _kernel(record, path)
        except KeyError as error:
            raise FocusError(f"{path} is not a file of the kernels' benchmarks: it does not state {error}") from None
    return list(read_bench(path)["rows"])


def _kernel(record: dict[str, Any], path: str | os.PathLike[str]) -> list[Row]:
    """Of `python -m focus_kernels.bench`."""
    if "--backward" in record.get("command", []):
        raise FocusError(f"{path} timed forward and backward passes, which a plan of inference does not predict")
    by_length: dict[int, list[dict[str, Any]]] = {}
    for result in record["results"]:
        by_length.setdefault(result["tokens"], []).append(result)
    rows = []
    for tokens, results in by_length.items():
        full = min(one["seconds"] for one in results if one["method"].startswith("full"))
        focus = min((one for one in results if one["method"].startswith("focus")), key=lambda one: one["seconds"])
        rows.append(_row("kernel", "one layer", record, tokens, full, focus["seconds"], focus["density"]))
    return rows


def _decode(record: dict[str, Any]) -> list[Row]:
    """Of `python -m focus_kernels.bench.decode`: the attention of one token in a stack of layers."""
    return [
        _row(
            "decode",
            f"{record['layers']} layers",
            record,
            one["tokens"],
            min(way["step_ms"] for way in one["full"]) / 1e3,
            one["focus_step_ms"] / 1e3,
            one["focus_bytes_read"] / one["full_bytes_read"],
            one["cache_ratio"],
        )
        for one in record["results"]
    ]


def _row(
    part: str,
    layers: str,
    record: dict[str, Any],
    tokens: int,
    full: float,
    focus: float,
    density: float,
    memory: float | None = None,
) -> Row:
    layer, machine = record["layer"], record["machine"]
    share = ", share" if layer["match"] == "share" and layer["top_k"] > 1 else ""
    groups = f"K = {layer['num_groups']}, k = {layer['top_k']}{share}, window {layer['window']}"
    return {
        "part": part,
        "tokens": tokens,
        "full_seconds": full,
        "focus_seconds": focus,
        "density": density,
        "memory": memory,
        "setup": f"{layers}, {layer['q_heads']}/{layer['kv_heads']} heads of {layer['size']}, {groups}",
        "dtype": layer["dtype"].removeprefix("torch."),
        "device": machine["device"],
        "threads": machine["threads"],
    }
