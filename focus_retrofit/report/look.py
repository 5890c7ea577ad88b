"""How plots look, whatever the reader's own settings of matplotlib are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from focus_kernels.errors import FocusError

from .theme import light

LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "focus",
    "text.parse_math": False,
    "text.color": light("ink"),
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": light("line"),
    "axes.labelcolor": light("soft"),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": light("line"),
    "grid.linewidth": 0.6,
    "xtick.color": light("line"),
    "ytick.color": light("line"),
    "xtick.labelcolor": light("soft"),
    "ytick.labelcolor": light("soft"),
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}


@contextmanager
def looking(needs: str) -> Iterator[None]:
    """Inside, matplotlib draws like this; where it is missing, `needs` says what for."""
    try:
        import matplotlib
    except ImportError as error:
        raise FocusError(f"{needs}: pip install focus-retrofit[report]") from error
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(LOOK)
        yield
