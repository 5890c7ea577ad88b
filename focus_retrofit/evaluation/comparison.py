"""Every method on every measure: perplexity of several texts and lengths, benchmarks, retrieval. What is measured stays
measured: a comparison that was stopped goes on, window by window and cell by cell."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from focus_kernels import FocusError

from ..record import Record
from .methods import Method, evaluate, prepare
from .texts import overlap, windows_of

Row = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What to measure, on what."""

    methods: Sequence[Method]
    text: str  # that is trained on, its held-out part measured
    also: Sequence[str] = ()  # texts that are measured only: what training on the first one costs elsewhere
    lengths: Sequence[int] = (1024,)
    windows: int = 6  # to measure on
    train_windows: int = 24
    steps: int = 60  # of LoRA and full fine-tuning
    tasks: Sequence[str] = ()
    shots: int = 0
    items: int = 50
    retrieval: Sequence[str] = ()
    retrieval_lengths: Sequence[int] = (1024,)
    depths: Sequence[float] = (0.1, 0.5, 0.9)
    retrieval_items: int = 4


class Comparison:
    """Of a retrofitted model; `texts` holds the documents to measure on by name, the one that is trained on first."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        wanted: Wanted,
        record: Record,
        training: list[str],
        texts: dict[str, list[str]],
        note: Callable[[str], None] = lambda line: None,
    ):
        self.model, self.tokenizer, self.wanted, self.record, self.note = model, tokenizer, wanted, record, note
        self.training, self.texts = training, texts
        shared = {name: overlap(training, held) for name, held in texts.items()}
        record["overlap"] = shared  # lines of the measured text that are in the training text
        if shared[wanted.text]:
            raise FocusError(
                f"{shared[wanted.text]:.1%} of the held-out lines of {wanted.text!r} are in its training text: "
                "remove what repeats"
            )

    def run(self) -> Record:
        self.learn()
        self.read_texts()
        if self.wanted.tasks:
            self.run_tasks()
        if self.wanted.retrieval:
            self.retrieve()
        return self.record

    def learn(self) -> None:
        """Methods that learn do so on the training text; what they learned lies beside the record."""
        learning = [method for method in self.wanted.methods if method.learns]
        if not learning:
            return
        self.note(f"learning: {', '.join(map(str, learning))}")
        folder = self.record.path.parent / "learned" if self.record.path else None
        length = min(self.wanted.lengths)
        windows = self.windows(self.training, "training text", length, self.wanted.train_windows)
        prepare(self.model, learning, windows, self.wanted.steps, folder)

    def windows(self, texts: list[str], what: str, length: int, count: int) -> list[Tensor]:
        return windows_of(texts, what, self.tokenizer, length, count)

    def read_texts(self) -> None:
        found = self.record.setdefault("perplexity", {})
        for name, texts in self.texts.items():
            for length in self.wanted.lengths:
                self.note(f"perplexity: {name}, {length:,} tokens")
                part = found.setdefault(f"{name}, {length} tokens", {"text": name, "length": length, "cells": {}})
                windows = self.windows(texts, f"text {name!r}", length, self.wanted.windows)
                part["rows"] = evaluate(
                    self.model, windows, self.wanted.methods, cells=part["cells"], on_cell=self.record.save
                )
                self.record.save()

    def run_tasks(self) -> None:
        from .harness import run_tasks

        self.note(f"benchmarks: {', '.join(self.wanted.tasks)}")
        rows: list[Row] = self.record.setdefault("tasks", [])

        def keep(row: Row) -> None:
            rows.append(row)
            self.record.save()

        wanted = self.wanted
        options: dict[str, Any] = {"shots": wanted.shots, "limit": wanted.items, "done": list(rows), "on_row": keep}
        run_tasks(self.model, self.tokenizer, list(wanted.methods), wanted.tasks, **options)

    def retrieve(self) -> None:
        from .retrieval import run_retrieval
        from .retrieval.summary import summarise

        self.note(f"retrieval: {', '.join(self.wanted.retrieval)}")
        cells: dict[str, Any] = self.record.setdefault("retrieval", {})

        def keep(cell: Row) -> None:
            cells[cell["key"]] = cell
            self.record.save()

        wanted = self.wanted
        found = run_retrieval(
            self.model, self.tokenizer, wanted.methods, wanted.retrieval, wanted.retrieval_lengths, wanted.depths,
            items=wanted.retrieval_items, on_cell=keep, done=dict(cells),
        )  # fmt: skip
        self.record["retrieved"] = summarise(found)
        self.record.save()


def table(record: Record, methods: Sequence[Method]) -> list[Row]:
    """A row per method: pairs and speed on the first text and length, then a column per measure; a perplexity is the
    change over full attention, a benchmark or retrieval its score."""
    rows = []
    for number, method in enumerate(methods):
        parts = [(title, part["rows"][number]) for title, part in record["perplexity"].items()]
        first = parts[0][1]
        name = first["method"]
        row: Row = {"method": name, "kind": method.kind}
        row |= {key: first.get(key) for key in ("density", "distant", "choosing", "speed", "engine", "parameters")}
        for title, found in parts:
            change, error = found.get("over_full"), found.get("over_full_error")
            row[title] = "" if change is None else f"{found['perplexity']:.2f} ({change:+.1%}{_error(error)})"
        for found in record.get("tasks", []):
            if found["method"] == name:
                shots = f", {found['shots']} shots" if found["shots"] else ""
                value, change = found["value"], found.get("over_full")
                row[f"{found['task']}{shots}"] = f"{value:.1%}" + ("" if change is None else f" ({change:+.1%})")
        for found in record.get("retrieved", []):
            if found["method"] == name:
                row[found["task"]] = f"{found['accuracy']:.0%}"
        rows.append(row)
    return rows


def _error(error: float | None) -> str:
    return "" if error is None else f" ± {error:.1%}"


def markdown(rows: list[Row]) -> str:
    """The table for people; a dash where there is nothing to say."""
    shown = {"method": "method", "distant": "distant pairs", "density": "all pairs", "choosing": "choosing"}
    shown |= {"speed": "speed"}
    others = [key for row in rows for key in row if key not in shown and key not in ("kind", "engine", "parameters")]
    columns = [*shown, *dict.fromkeys(others)]
    lines = ["| " + " | ".join(shown.get(x, x) for x in columns) + " |", "|---" * len(columns) + "|"]
    for row in rows:
        cells = []
        for column in columns:
            value = row.get(column)
            if column in ("distant", "density", "choosing"):
                value = None if not value else f"{value:.0%}" if value >= 0.01 else f"{value:.1%}"
            elif column == "speed":
                value = "mask" if row["engine"] == "dense mask" else None if value is None else f"{value:.2f}"
            cells.append(str(value or "-"))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def written(record: Record, methods: Sequence[Method], folder: Path) -> list[Path]:
    """table.md, summary.json (the record without its cells) and pareto.png beside the record."""
    from ..files import write_atomically

    files = [folder / "table.md", folder / "summary.json"]
    write_atomically(files[0], markdown(table(record, methods)))
    texts = {title: {x: part[x] for x in part if x != "cells"} for title, part in record["perplexity"].items()}
    short = {**record, "perplexity": texts}
    short.pop("retrieval", None)
    if "tasks" in short:
        from .harness import without_items

        short["tasks"] = [without_items(row) for row in short["tasks"]]
    write_atomically(files[1], json.dumps(short, indent=1) + "\n")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return files
    from ..report.plot_quality import draw

    rows = next(iter(record["perplexity"].values()))["rows"]
    files.append(folder / "pareto.png")
    drawn = io.BytesIO()
    draw(rows, narrow=False, many=True).savefig(drawn, format="png", dpi=150)
    write_atomically(files[-1], drawn.getvalue())
    return files
