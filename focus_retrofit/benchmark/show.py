"""Rows as a table, and in words where Focus loses."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from .rows import FOCUS, FULL, Row

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

NOISY = 0.1


def table(rows: Sequence[Row]) -> Group:
    """One line per row; below them what was run, and where Focus loses."""
    made = _table()
    for name in ("part", "tokens", "full", "Focus", "speedup", "bound", "density", "attention", "memory"):
        made.add_column(name, justify="left" if name == "part" else "right", no_wrap=True)
    for row in sorted(rows, key=_order):
        made.add_row(
            row["part"],
            f"{row['tokens']:,}" + ("*" if row.get("beyond_positions") else ""),
            _time(row, "full_seconds"),
            _time(row, "focus_seconds"),
            f"{row['speedup']:.2f}",
            _number(row.get("bound"), ".2f"),
            _number(row.get("density"), ".1%"),
            _number(row.get("attention_share"), ".0%"),
            _number(row.get("memory"), ".2f"),
            style="red" if row["speedup"] < 1 else None,
        )
    return _group(made, verdicts(rows))


def comparison(found: Sequence[dict[str, Any]]) -> Group:
    """What `compare_benches` found; ratios are second over first."""
    made = _table()
    for name in ("part", "tokens", "speedup", "then", "ratio", "full s ratio", "Focus s ratio"):
        made.add_column(name, justify="left" if name == "part" else "right", no_wrap=True)
    made.add_column("setup")
    for one in sorted(found, key=_order):
        numbers = [*one["speedup"], one["speedup_ratio"], one["full_seconds_ratio"], one["focus_seconds_ratio"]]
        made.add_row(one["part"], f"{one['tokens']:,}", *(f"{number:.2f}" for number in numbers), one["setup"])
    lines = ["ratios: second file over first"]
    if not all(one["same_machine"] for one in found):
        lines.append("measured on other machines, or with other threads: only speedups compare")
    return _group(made, lines)


def verdicts(rows: Sequence[Row]) -> list[str]:
    """For each part and setup, at which of the measured lengths Focus is slower than full attention."""
    series: dict[tuple[str, str], dict[int, Row]] = {}
    for row in sorted(rows, key=_order):
        series.setdefault((row["part"], row["setup"]), {})[row["tokens"]] = row
    lines = [f"{part}, {setup}: {_verdict(found)}" for (part, setup), found in series.items()]
    noisy = [f"{row['part']} at {row['tokens']:,}" for row in rows if _noise(row) > NOISY]
    if noisy:
        lines.append(f"noisy, measure again on a quiet machine or with more repeats: {', '.join(noisy)}")
    if any(row.get("beyond_positions") for row in rows):
        lines.append("* longer than the model's positions reach: the speed is real, the text is not")
    return lines


def _verdict(found: dict[int, Row]) -> str:
    lengths = sorted(found)
    lost = [tokens for tokens in lengths if found[tokens]["speedup"] < 1]
    if not lost:
        return "faster than full attention at every length"
    if lost == lengths:
        return "slower than full attention at every length"
    if lost == lengths[: len(lost)]:
        return f"slower than full attention up to {lost[-1]:,} tokens"
    return f"slower than full attention at {', '.join(f'{tokens:,}' for tokens in lost)} tokens"


def _noise(row: Row) -> float:
    """How much longer than the best a usual run of Focus or of the fastest full attention took; of many runs the best
    is good whatever the others are."""
    times = [row.get("all", {}).get(name, []) for name in (FOCUS, FULL + str(row.get("full_method")))]
    return max((median(seconds) / min(seconds) - 1 for seconds in times if 1 < len(seconds) < 10), default=0.0)


def _table() -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def _group(made: Table, lines: list[str]) -> Group:
    from rich.console import Group
    from rich.text import Text

    return Group(made, *(Text(line) for line in lines))


def _order(row: Row) -> tuple[int, str, int]:
    return ["kernel", "prefill", "decode"].index(row["part"]), row["setup"], row["tokens"]


def _time(row: Row, name: str) -> str:
    seconds = row[name]
    if row["part"] == "decode":
        return f"{1 / seconds:.1f} tok/s"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
