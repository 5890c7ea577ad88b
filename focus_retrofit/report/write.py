"""The two pages, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from focus_kernels.errors import FocusError

from ..files import write_atomically
from .embed import plain
from .page import inspection_page, report_page
from .plots import NAMES, draw_plots


def write_report(results: dict[str, Any], folder: str | Path) -> Path:
    """`folder/report.html`, which needs no other file, and its plots as `folder/plots/*.png`."""
    folder, results = Path(folder), plain(results)
    _check(results.get("inspection"))
    drawn = draw_plots(results)
    plots = folder / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        if name in drawn:
            write_atomically(plots / f"{name}.png", drawn[name][1])
        else:
            (plots / f"{name}.png").unlink(missing_ok=True)
    path = folder / "report.html"
    write_atomically(path, report_page(results, {name: svgs for name, (svgs, _) in drawn.items()}))
    return path


def write_inspection(inspection: dict[str, Any], path: str | Path, title: str) -> Path:
    """A page with the text and its groups alone; needs no matplotlib."""
    path, inspection = Path(path), plain(inspection)
    _check(inspection)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, inspection_page(inspection, title))
    return path


def _check(inspection: dict[str, Any] | None) -> None:
    """A page that cannot show its text would fail silently, in the reader's browser."""
    if not inspection:
        return
    missing = [
        key for key in ("tokens", "num_groups", "match", "window", "sinks", "layers") if inspection.get(key) is None
    ]
    if missing:
        raise FocusError(f"the inspection lacks {', '.join(missing)}")
    if inspection["match"] not in ("probe", "share"):
        raise FocusError(f"the inspection's match is {inspection['match']!r}; expected 'probe' or 'share'")
    tokens = len(inspection["tokens"])
    for layer in inspection["layers"]:
        groups = layer["groups"]
        if len(groups) != tokens or not all(groups):
            raise FocusError(
                f"layer {layer['layer']} has groups for {len(groups)} tokens; every one of {tokens} needs some"
            )
