"""All methods on the same items: a cell per method, task, length and depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from tqdm.auto import tqdm

from focus_kernels import FocusError

from ..methods import attending, title
from .haystack import sentences_of
from .intervals import wilson
from .item import Item, Setting
from .score import density_of, score_items
from .tasks import TASKS

Cell = dict[str, Any]


def run_retrieval(
    model: Any,
    tokenizer: Any,
    methods: Iterable[tuple[Any, ...]],
    tasks: Sequence[str],
    lengths: Sequence[int],
    depths: Sequence[float],
    *,
    items: int = 4,
    haystack: str | Sequence[str] = "essays",
    seed: int = 0,
    batch: int = 1,
    on_cell: Callable[[Cell], None] = lambda cell: None,
    done: Mapping[str, Cell] | None = None,
) -> list[Cell]:
    """Every cell, in order; those in `done` (by `cell["key"]`) are taken from there, and `on_cell` is shown the others
    as they come. An item depends on seed, task, length, depth and its number alone: all methods are asked the same.
    What is asked for lies beyond the window of the model's Focus."""
    check(tasks, lengths, depths, items, batch)
    methods, done = list(methods), done or {}
    sentences = sentences_of(haystack) if any(TASKS[task].haystack for task in tasks) else []
    setting = Setting(tokenizer, sentences, model.focus.config.window)
    places = [(t, n, d) for t in tasks for n in lengths for d in (depths if TASKS[t].deep else [None])]
    cells: list[Cell] = []
    with tqdm(total=len(places) * len(methods), unit=" cells", leave=False) as bar:
        for task, length, depth in places:
            made = make_items(setting, task, length, depth, items, seed)
            for method in methods:
                name = title(model, method)
                bar.set_description(f"{name}, {task} {length}")
                key = cell_key(name, task, length, depth)
                if key not in done:
                    # entered anew for each cell: what a method draws at random does not depend on the cells before
                    with attending(model, *method):
                        cell = {"key": key, "method": name, "task": task, "length": length, "depth": depth}
                        cell |= run_cell(model, made, TASKS[task].score, batch)
                    on_cell(cell)
                else:
                    cell = dict(done[key])
                cells.append(cell)
                bar.update()
    return cells


def cell_key(method: str, task: str, length: int, depth: float | None) -> str:
    return "/".join(map(str, (task, length, depth, method)))


def make_items(setting: Setting, task: str, length: int, depth: float | None, count: int, seed: int) -> list[Item]:
    return [
        TASKS[task].make(setting, length, depth or 0.0, Random(f"{seed}/{task}/{length}/{depth}/{number}"))
        for number in range(count)
    ]


def run_cell(model: Any, items: Sequence[Item], score: str, batch: int) -> Cell:
    """What a method makes of items; `scores` are the task's own, by item, and `accuracy` is their mean."""
    found: list[dict[str, float]] = []
    densities: list[float] = []
    seconds = 0.0
    for start in range(0, len(items), batch):
        part = items[start : start + batch]
        more, taken = score_items(model, part)
        found += more
        seconds += taken
        densities += [density_of(model)] * len(part)
    scores = [x[score] for x in found]
    return {
        "items": len(items),
        "right": int(sum(x["exact"] for x in found)),
        "accuracy": sum(scores) / len(scores),
        "interval": list(wilson(sum(scores), len(scores))),
        "tokens": sum(x["tokens"] for x in found) / len(found),
        "nll": sum(x["nll"] for x in found) / len(found),
        "density": sum(densities) / len(densities),
        "seconds": seconds,
        "scores": scores,
        "nlls": [x["nll"] for x in found],
    }


def check(tasks: Sequence[str], lengths: Sequence[int], depths: Sequence[float], items: int, batch: int) -> None:
    """Mistakes show before anything is run."""
    for task in tasks:
        if task not in TASKS:
            raise FocusError(f"task {task!r} is not known; choose from {', '.join(TASKS)}")
    if wrong := [depth for depth in depths if not 0 <= depth <= 1]:
        raise FocusError(f"depth {wrong[0]} is not between 0 (the beginning) and 1 (the end)")
    if not depths and any(TASKS[task].deep for task in tasks):
        raise FocusError("no depths are given; 0,0.5,1 asks at the beginning, in the middle and at the end")
    if not lengths or min(items, batch, *lengths) < 1:
        raise FocusError(f"lengths {list(lengths)}, items {items}, batch {batch}: all must be 1 or more")
