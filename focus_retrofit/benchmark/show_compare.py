"""What `compare_benches` found, as a table: what moved most first, what is noise in grey."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .growth import by_series
from .labels import short_setups
from .show import grouped, new_table

if TYPE_CHECKING:
    from rich.console import Group

COLOURS = {"faster": "green", "less": "green", "slower": "red", "more": "red", "same": "dim", None: "dim"}
COLUMNS = {"Focus": "focus_seconds", "full": "full_seconds", "memory": "memory", "density": "density"}


def comparison(found: Mapping[str, Any]) -> Group:
    """A row each; a change is that of the second file over the first."""
    from rich.markup import escape

    made = new_table()
    for name in ("part", "tokens", "speedup", "then", "change", "within", "verdict", *COLUMNS, "what"):
        made.add_column(name, justify="left" if name in ("part", "verdict", "what") else "right", no_wrap=True)
    told = short_setups(found["rows"])
    for row in found["rows"]:
        speed = row["moved"]["speedup"]
        made.add_row(
            row["part"],
            f"{row['tokens']:,}",
            f"{speed['first']:.2f}",
            f"{speed['second']:.2f}",
            _cell(speed),
            f"{speed['margin']:.0%}" + ("?" if speed["error"] is None else ""),
            f"[{COLOURS[row['verdict']]}]{row['verdict']}",
            *(_cell(row["moved"].get(name)) for name in COLUMNS.values()),
            escape(told[row["part"], row["setup"]]),
        )
    return grouped(made, notes(found))


def _cell(moved: Mapping[str, Any] | None) -> str:
    if moved is None:
        return "[dim]-"
    return f"[{COLOURS[moved['verdict']]}]{moved['ratio'] - 1:+.1%}"


def notes(found: Mapping[str, Any]) -> list[str]:
    """What the table does not say by itself."""
    rows = found["rows"]
    counts = {word: sum(row["verdict"] == word for row in rows) for word in ("faster", "slower", "same")}
    lines = [
        ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        + " by speedup; within: what may be noise, two standard errors of the best times, "
        + f"at least {found['threshold']:.0%}"
    ]
    if any(row["moved"]["speedup"]["error"] is None for row in rows):
        lines.append("? timed once: how far that is off is not known")
    if not found["same_machine"]:
        lines.append("measured on other machines, or with other threads: only speedups compare, seconds are not judged")
    for one in found["growth"]:
        (focus, then), (full, full_then) = one["focus_seconds"], one["full_seconds"]
        lines.append(
            f"{one['part']}, {one['setup']}: time of Focus ~ n^{focus:.2f}, then n^{then:.2f}; of full attention "
            f"n^{full:.2f}, then n^{full_then:.2f}"
        )
    for name, which in (("only_first", "first"), ("only_second", "second")):
        for (part, setup), series in by_series(found[name]).items():
            lengths = ", ".join(f"{row['tokens']:,}" for row in series)
            lines.append(f"only in the {which}: {part} at {lengths} tokens, {setup}")
    return lines
