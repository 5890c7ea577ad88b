"""Train the routers of a retrofitted model; imported on first use, so that those who only run one do not pay for it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data import Stream, Windows, hold_out, load_texts, make_windows
    from .fit import fit_routers
    from .objectives import Objective
    from .options import TrainConfig
    from .recipe import train
    from .spread import spread_groups
    from .trainer import FocusTrainer
    from .warm import warm_start

_WHERE = {
    "FocusTrainer": "trainer",
    "Objective": "objectives",
    "Stream": "data",
    "TrainConfig": "options",
    "Windows": "data",
    "fit_routers": "fit",
    "hold_out": "data",
    "load_texts": "data",
    "make_windows": "data",
    "spread_groups": "spread",
    "train": "recipe",
    "warm_start": "warm",
}
__all__ = [
    "FocusTrainer",
    "Objective",
    "Stream",
    "TrainConfig",
    "Windows",
    "fit_routers",
    "hold_out",
    "load_texts",
    "make_windows",
    "spread_groups",
    "train",
    "warm_start",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
