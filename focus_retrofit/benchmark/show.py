"""Rows as a table, and in words where Focus loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .growth import by_series, fit_exponent, fitted, points
from .labels import short_setups
from .noise import row_errors
from .options import PARTS
from .rows import Row

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

NOISY = 0.1


def table(rows: Sequence[Row]) -> Group:
    """One line per row; below them what was run, and where Focus loses."""
    from rich.markup import escape

    made = new_table()
    held = any(row.get("focus_bytes") for row in rows)
    names = ["part", "tokens", "full", "Focus", "speedup", "bound", "density", "attention", "memory"]
    told = short_setups(rows)
    for name in [*names, *(["of Focus"] if held else []), *(["what"] if any(told.values()) else [])]:
        made.add_column(name, justify="left" if name in ("part", "what") else "right", no_wrap=True)
    for row in sorted(rows, key=_order):
        made.add_row(
            row["part"],
            f"{row['tokens']:,}" + ("*" if row.get("beyond_positions") else ""),
            ("~" if row.get("sampled") else "") + _time(row, "full_seconds"),
            _time(row, "focus_seconds"),
            f"{row['speedup']:.2f}",
            _number(row.get("bound"), ".2f"),
            _number(row.get("density"), ".1%"),
            _number(row.get("attention_share"), ".0%"),
            _number(row.get("memory"), ".2f"),
            *([size(row["focus_bytes"]) if row.get("focus_bytes") else "-"] if held else []),
            *([escape(told[row["part"], row["setup"]])] if any(told.values()) else []),
            style="red" if row["speedup"] < 1 else None,
        )
    return grouped(made, verdicts(rows))


def verdicts(rows: Sequence[Row]) -> list[str]:
    """For each part and setup, at which of the measured lengths Focus is slower than full attention, and how the time
    of both grows."""
    lines = []
    for (part, setup), series in by_series(rows).items():
        lines.append(f"{part}, {setup}: {_verdict({row['tokens']: row for row in series})}{_growing(series)}")
    noisy = list(dict.fromkeys(f"{row['part']} at {row['tokens']:,}" for row in rows if _noise(row) > NOISY))
    if noisy:
        lines.append(f"noisy, measure again on a quiet machine or with more repeats: {', '.join(noisy)}")
    for how in dict.fromkeys(row.get("sampled") for row in rows):
        if how:
            lines.append(f"~ full attention timed on a sample: {how}")
    if any(row.get("beyond_positions") for row in rows):
        lines.append("* longer than the model's positions reach: the speed is real, the text is not")
    return lines


def _growing(series: Sequence[Row]) -> str:
    """The exponents, where there are lengths enough."""
    found = {name: fit_exponent(points(series, f"{name}_seconds")) for name in ("full", "focus")}
    if None in found.values():
        return ""
    kept = fitted(points(series, "focus_seconds"))
    return (
        f"; time ~ n^{found['full']:.2f} with full attention, n^{found['focus']:.2f} with Focus, "
        f"from {kept[0][0]:,} to {kept[-1][0]:,} tokens"
    )


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
    """How far the speedup may be off: two standard errors."""
    return 2 * (row_errors(row)["speedup"] or 0.0)


def new_table() -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def grouped(made: Table, lines: list[str]) -> Group:
    from rich.console import Group
    from rich.text import Text

    return Group(made, *(Text(line) for line in lines))


def _order(row: Row) -> tuple[int, str, int]:
    return PARTS.index(row["part"]), row["setup"], row["tokens"]


def _time(row: Row, name: str) -> str:
    seconds = row[name]
    if row["part"] == "decode":
        return f"{1 / seconds:.1f} tok/s"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} B"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
