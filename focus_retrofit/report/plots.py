"""Every plot three times: wide and narrow for the page, and as a file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from . import facts, plot_layers, plot_quality, plot_speed
from .look import looking
from .speed import curves
from .svg import inline_svg
from .theme import light

NAMES = ("quality", "speed", "balance", "kept")


def draw_plots(results: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
    """Name -> (both SVGs for the page, PNG); a plot without data is left out."""
    drawn = {}
    with looking("the report's plots need matplotlib"):
        for name, (draw, label) in _wanted(results).items():
            wide, narrow = draw(False), draw(True)
            svgs = inline_svg(wide, f"{name}-wide", label) + inline_svg(narrow, f"{name}-narrow", label)
            buffer = io.BytesIO()
            wide.savefig(buffer, format="png", dpi=150, facecolor=light("paper"))
            drawn[name] = (svgs, buffer.getvalue())
    return drawn


def _wanted(results: dict[str, Any]) -> dict[str, tuple[Callable[[bool], Any], str]]:
    rows = [row for row in facts.quality_rows(results) if row.get("density") is not None]
    timed, layers = curves(results.get("speed") or []), facts.layers_of(results)
    shared, kept = [layer for layer in layers if layer.get("shares")], facts.kept_layers(layers)
    groups = (results.get("inspection") or {}).get("num_groups") or 1
    wanted: dict[str, tuple[Callable[[bool], Any], str]] = {}
    if rows:
        label = "Perplexity against density. " + " ".join(facts.quality_words(rows))
        wanted["quality"] = (lambda narrow: plot_quality.draw(rows, narrow)), label
    if timed:
        label = "Speedup over full attention against length. " + " ".join(f"{c.part}: {c.words}." for c in timed)
        wanted["speed"] = (lambda narrow: plot_speed.draw(timed, narrow)), label
    if shared:
        label = "Shares of the groups in each layer. " + facts.balance_words(shared, groups)
        wanted["balance"] = (lambda narrow: plot_layers.draw_balance(shared, narrow)), label
    if kept:
        label = "Attention kept in each layer. " + facts.kept_words(kept)
        wanted["kept"] = (lambda narrow: plot_layers.draw_kept(kept, narrow)), label
    return wanted
