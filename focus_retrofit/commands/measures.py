"""What `eval` can measure: a text, benchmarks, retrieval. Each keeps what is done in a record and shows its rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from focus_kernels.errors import FocusError

from ..record import Record
from .tables import print_positions, print_retrieval, print_rows, print_tasks

Rows = list[dict[str, Any]]


@dataclass
class OnText:
    """Perplexity."""

    text: str
    column: str
    split: str
    length: int
    windows: int
    stride: int | None
    by_position: bool
    by_doubling: bool
    shown: ClassVar[tuple[str, ...]] = ("by_position", "by_doubling")  # change what is printed only

    def __post_init__(self) -> None:
        from .texts import read_texts

        if self.stride is not None and self.stride >= self.length:
            raise FocusError(
                f"a stride of {self.stride} leaves nothing before it in windows of {self.length}: use a smaller one"
            )
        self.documents = read_texts(self.text, column=self.column, split=self.split)

    def run(self, model: Any, tokenizer: Any, methods: Any, record: Record) -> Rows:
        from ..evaluation import evaluate
        from ..evaluation.texts import windows_of

        cut = windows_of(
            self.documents, f"text {self.text!r}", tokenizer, self.length, self.windows or None, self.stride
        )
        record.update(tokens=self.length, counted=len(cut))
        cells = record.setdefault("cells", {})
        rows = evaluate(model, cut, methods, scored=self.stride, cells=cells, on_cell=record.save)
        record.setdefault("rows", {}).update(zip(map(str, methods), rows, strict=True))
        return rows

    def show(self, rows: Rows, record: Record) -> None:
        from ..evaluation.perplexity import doubling_edges, equal_edges

        print_rows(rows)
        for kind, edges in (("by_position", equal_edges), ("by_doubling", doubling_edges)):
            if getattr(self, kind) and all(kind in row for row in rows):
                print_positions(rows, edges(self.length - 1), kind)


@dataclass
class OnTasks:
    """Benchmarks through lm-eval; items within the window must be the base model's."""

    tasks: tuple[str, ...]
    shots: int
    items: int
    seed: int
    shown: ClassVar[tuple[str, ...]] = ()

    def run(self, model: Any, tokenizer: Any, methods: Any, record: Record) -> Rows:
        from ..evaluation.harness import check_within, run_tasks

        kept: Rows = record.setdefault("answers", [])

        def keep(row: dict[str, Any]) -> None:
            kept.append(row)
            record.save()

        options: dict[str, Any] = {"shots": self.shots, "limit": self.items or None, "seed": self.seed}
        rows = run_tasks(model, tokenizer, methods, self.tasks, **options, done=list(kept), on_row=keep)
        record["checked_within_the_window"] = check_within(rows)
        return rows

    def show(self, rows: Rows, record: Record) -> None:
        print_tasks(rows)
        print(f"{record['checked_within_the_window']} answers within the window are the base model's.")


@dataclass
class OnRetrieval:
    """What is found far back, with a heat map beside the record."""

    retrieval: tuple[str, ...]
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    haystack: str
    items: int
    seed: int
    shown: ClassVar[tuple[str, ...]] = ()

    def run(self, model: Any, tokenizer: Any, methods: Any, record: Record) -> Rows:
        from ..evaluation.retrieval import run_retrieval, summarise

        kept: dict[str, Any] = record.setdefault("cells", {})

        def keep(cell: dict[str, Any]) -> None:
            kept[cell["key"]] = cell
            record.save()

        found = run_retrieval(
            model, tokenizer, methods, self.retrieval, self.lengths, self.depths,
            items=self.items, haystack=self.haystack, seed=self.seed, on_cell=keep, done=dict(kept),
        )  # fmt: skip
        if record.path is not None:
            self.draw(found, record)
        record["rows"] = summarise(found)
        return record["rows"]

    def draw(self, cells: Rows, record: Record) -> None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            return
        from ..files import write_atomically
        from ..report.plot_retrieval import draw_retrieval

        for task in self.retrieval:
            if any(cell["task"] == task and cell["depth"] is not None for cell in cells):
                file = record.path.with_name(f"{record.path.stem}-{task}.png")  # type: ignore[union-attr]
                write_atomically(file, draw_retrieval(cells, task))

    def show(self, rows: Rows, record: Record) -> None:
        print_retrieval(rows)


MEASURES = {"text": OnText, "tasks": OnTasks, "retrieval": OnRetrieval}


def chosen(options: dict[str, Any]) -> Any:
    """The one thing that the options ask to measure; takes its options, and those of the others, out of them."""
    wanted = [name for name in MEASURES if options[name]]
    if len(wanted) != 1:
        raise FocusError("evaluate on one thing: a TEXT, or --tasks, or --retrieval")
    known = {field.name for kind in MEASURES.values() for field in fields(kind)}
    given = {name: options.pop(name) for name in known}
    kind = MEASURES[wanted[0]]
    return kind(**{field.name: given[field.name] for field in fields(kind)})
