"""Speed, memory and how cost grows, of benchmark files in one picture: a row of panels for each part."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from focus_kernels.errors import FocusError

from ..report.embed import shorten
from ..report.look import looking
from ..report.theme import light
from .labels import common
from .options import PARTS
from .plot_panels import draw_growth, draw_memory, draw_speed
from .plot_series import Series, series_of
from .records import read_bench

KINDS = (".png", ".svg", ".pdf")
Named = tuple[str, Mapping[str, Any]]


def plot_bench(files: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> Path:
    """Draw files of `focus-retrofit bench` into a picture, whose name says of which kind."""
    return plot_records([(Path(file).stem, read_bench(file)) for file in files], output)


def plot_records(records: Sequence[Named], output: str | os.PathLike[str]) -> Path:
    """The same of records with a name each."""
    output = check_output(output)
    with looking("the plots of a benchmark need matplotlib"):
        figure = draw_bench(records)
        output.parent.mkdir(parents=True, exist_ok=True)
        undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(output.suffix.lower())
        figure.savefig(output, dpi=150, facecolor=light("paper"), metadata=undated)
    return output


def check_output(output: str | os.PathLike[str]) -> Path:
    """Asked before anything is measured, so that nothing is lost for a name."""
    path = Path(output)
    if path.suffix.lower() not in KINDS:
        raise FocusError(f"cannot plot into {str(output)!r}: its name must end in {', '.join(KINDS)}")
    return path


def draw_bench(records: Sequence[Named]) -> Any:
    """A matplotlib figure; inside `report.look.looking` it has our look."""
    from matplotlib.figure import Figure

    series = series_of(records)
    parts = [part for part in PARTS if any(one.part == part for one in series)]
    if not parts:
        raise FocusError("there is nothing to plot: the files have no rows")
    figure = Figure(figsize=(12, 0.5 + 3.5 * len(parts)), layout="constrained")
    figure.suptitle(_machines(records), x=0.01, ha="left", size=8.5, color=light("soft"))
    for part, place in zip(parts, figure.subfigures(len(parts), 1, squeeze=False, hspace=0.04)[:, 0], strict=True):
        own = [one for one in series if one.part == part]
        _draw_part(place, part, own)
    return figure


def _draw_part(place: Any, part: str, own: list[Series]) -> None:
    setup = common([one.setup for one in own])
    title = f"{part.capitalize()}: {setup}" if setup else part.capitalize()
    place.suptitle(shorten(title, 130), x=0.01, ha="left", size=10.5, weight="bold")
    speed, memory, growth = place.subplots(1, 3)
    draw_speed(speed, own)
    draw_memory(memory, own)
    draw_growth(growth, own)


def _machines(records: Sequence[Named]) -> str:
    """Where it was measured, once where that is the same for all."""
    texts = {}
    for name, record in records:
        machine = record.get("machine") or {}
        threads, torch = machine.get("threads"), (record.get("versions") or {}).get("torch")
        facts = [machine.get("gpu"), machine.get("processor")]
        facts += [f"{threads} thread{'s' * (threads != 1)}" if threads else None, f"torch {torch}" if torch else None]
        texts[name] = ", ".join(str(fact) for fact in facts if fact)
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "   ".join(f"{name}: {text}" for name, text in texts.items())
