"""Results as tables in a terminal."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def show(title: str, columns: list[str], lines: list[list[str]]) -> None:
    """The first column is text, the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(*line)
    console = Console(highlight=False)
    if title:
        console.print(title, style="bold", markup=False)
    console.print(table)


def print_rows(rows: list[Row]) -> None:
    """Perplexity: the difference from full attention is paired, over the same windows."""
    columns = ["attention", "perplexity", "±", "over full", "± ", "speed", "all pairs", "distant", "largest group"]
    lines = [
        [
            row["method"],
            f"{row['perplexity']:.3f}",
            number(row["standard_error"], "{:.3f}"),
            number(row.get("over_full"), "{:+.2%}"),
            number(row.get("over_full_error"), "{:.2%}"),
            "mask" if row.get("engine") == "dense mask" else number(row.get("speed"), "{:.2f}"),
            f"{row['density']:.1%}",
            f"{row['distant']:.1%}",
            number(row.get("largest_group"), "{:.0%}"),
        ]
        for row in rows
    ]
    show("", columns, lines)


def print_positions(rows: list[Row], edges: list[int], kind: str) -> None:
    """Perplexity by range of positions, a column each; only those that were scored."""
    shown = [n for n, found in enumerate(rows[0][kind]) if found]
    columns = ["attention", *(f"{edges[n + 1] + 1:,}" for n in shown)]
    lines = [[row["method"], *(f"{row[kind][n]['perplexity']:.2f}" for n in shown)] for row in rows]
    show("perplexity of the tokens up to a position", columns, lines)


def print_tasks(rows: list[Row]) -> None:
    """Benchmarks: differences are paired, item by item; 'beyond' are items longer than the window."""
    columns = ["attention", "score", "over full", "lost/gained/changed", "beyond", "score there", "full's"]
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        first = own[0]
        shots = f", {first['shots']} examples" if first["shots"] else ""
        lines = [
            [
                row["method"],
                f"{row['value']:.1%}",
                number(row.get("over_full"), "{:+.1%}") + number(row.get("over_full_error"), " ± {:.1%}", ""),
                "/".join(number(row.get(part), "{}") for part in ("lost", "gained", "changed")),
                f"{row['beyond']} of {row['items']}",
                number(row.get("beyond_value"), "{:.1%}"),
                number(row.get("beyond_full"), "{:.1%}"),
            ]
            for row in own
        ]
        show(f"{task}{shots}: {first['metric']}, {first['tokens_mean']:.0f} tokens on average", columns, lines)


def print_retrieval(rows: list[Row]) -> None:
    """What was found far back; the negative log-likelihood tells methods apart where all find it, or none."""
    columns = ["attention", "found", "interval", "nll", "nll over full", "± ", "pairs"]
    for task in dict.fromkeys(row["task"] for row in rows):
        lines = []
        for row in (row for row in rows if row["task"] == task):
            over, (low, high) = row["over_full"] or {}, row["interval"]
            lines.append(
                [
                    row["method"],
                    f"{row['accuracy']:.0%}",
                    f"{low:.0%} to {high:.0%}",
                    f"{row['nll']:.2f}",
                    number(over.get("nll"), "{:+.2f}"),
                    number(over.get("nll_error"), "{:.2f}"),
                    f"{row['density']:.0%}",
                ]
            )
        show(f"{task}, {next(row['items'] for row in rows if row['task'] == task)} items", columns, lines)


def number(value: float | None, form: str, without: str = "-") -> str:
    return without if value is None else form.format(value)
