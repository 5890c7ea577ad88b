"""What all tables share: where results are, how numbers are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def measured(name: str) -> bool:
    """Is there a file of this name among the results?"""
    return (ROOT / "results" / f"{name}.json").is_file()


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / f"{name}.json").read_text())
    return found


def table(head: str, rows: list[list[str]]) -> str:
    names = [name.strip() for name in head.split("|")]
    lines = [names, ["---"] * len(names), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def tokens(count: int) -> str:
    return f"{count >> 20}M" if count >= 1 << 20 else f"{count >> 10}K"


def number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)
