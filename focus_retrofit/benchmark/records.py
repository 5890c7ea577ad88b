"""Benchmark files: rows, and all it takes to read them later."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from focus_kernels.errors import FocusError

from ..files import write_atomically
from .growth import cost_growth
from .options import PARTS
from .rows import FIELDS, Row

SCHEMA = 2
READABLE = (1, 2)  # 1: without bytes, without training
NUMBERS = ("tokens", "full_seconds", "focus_seconds", "speedup")


def machine_facts() -> dict[str, Any]:
    """What the numbers were measured on."""
    import psutil
    import torch

    facts = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Of all that bears on speed."""
    from .. import __version__

    found = {"focus_retrofit": __version__}
    for package in ("torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**found, "python": platform.python_version()}


def bench_record(rows: Iterable[Row], command: str | Sequence[str]) -> dict[str, Any]:
    """Rows with what they were measured on and by, and how cost grows: what a file holds, and `--json` prints."""
    rows = list(rows)
    return {
        "schema": SCHEMA,
        "command": command if isinstance(command, str) else " ".join(command),
        "machine": machine_facts(),
        "versions": versions(),
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "growth": cost_growth(rows),
        "rows": rows,
    }


def write_bench(path: str | os.PathLike[str], rows: Iterable[Row], command: str | Sequence[str]) -> Path:
    """Write rows to a file, all or nothing."""
    path, record = Path(path), bench_record(rows, command)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(record, indent=1) + "\n")
    return path


def keep_rows(path: str | os.PathLike[str], command: str | Sequence[str]) -> Callable[[Row], None]:
    """An `on_row` that writes the file anew with each row: whoever interrupts keeps what is done."""
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append(row)
        write_bench(path, rows, command)

    return keep


def read_bench(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A file of `write_bench`, checked; one of an older schema is given in the form of this one."""
    try:
        record = json.loads(Path(path).read_text())
    except OSError as error:
        raise FocusError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise FocusError(f"{path} is not a benchmark file: it is not JSON ({error})") from None
    problem = _problem(record)
    if problem:
        raise FocusError(f"{path} is not a benchmark file of `focus-retrofit bench`: {problem}")
    return _current(record)


def _current(record: dict[str, Any]) -> dict[str, Any]:
    """What an older schema did not say is null; it said in a method's name that it was sampled."""
    rows = []
    for row in record["rows"]:
        sampled = "blocks of queries" if str(row.get("full_method")).endswith(", sampled") else None
        full = {name: row.get(name) for name in FIELDS} | row
        rows.append({**full, "sampled": row.get("sampled", sampled)})
    return {**record, "schema": SCHEMA, "growth": cost_growth(rows), "rows": rows}


def _problem(record: Any) -> str | None:
    if not isinstance(record, dict) or not isinstance(record.get("rows"), list):
        return "it has no list of rows"
    if record.get("schema") not in READABLE:
        return f"its schema is {record.get('schema')!r}, this version reads {' and '.join(map(str, READABLE))}"
    for number, row in enumerate(record["rows"]):
        if not isinstance(row, dict) or row.get("part") not in PARTS or not isinstance(row.get("setup"), str):
            return f"row {number} has no part ({', '.join(PARTS)}) or no setup"
        wrong = [name for name in NUMBERS if not isinstance(row.get(name), int | float) or row[name] <= 0]
        if wrong:
            return f"row {number} has no positive {', '.join(wrong)}"
    return None
