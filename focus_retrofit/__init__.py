"""Retrofit frozen causal language models with Focus attention."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# imported on first use: `import focus_retrofit` costs nothing
_HOMES = {
    "FocusCache": "cache",
    "FocusConfig": "config",
    "FocusError": "config",
    "extend_positions": "positions",
    "load_adapter": "surgery",
    "load_pretrained": "models",
    "prefill": "streaming",
    "retrofit": "surgery",
}
__all__ = [
    "FocusCache",
    "FocusConfig",
    "FocusError",
    "extend_positions",
    "load_adapter",
    "load_pretrained",
    "prefill",
    "retrofit",
]

if TYPE_CHECKING:
    from focus_kernels import FocusError

    from .cache import FocusCache
    from .config import FocusConfig
    from .models import load_pretrained
    from .positions import extend_positions
    from .streaming import prefill
    from .surgery import load_adapter, retrofit


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
