"""One long prompt over several processes, each with a slice of its tokens.

What needs torch is imported on first use: the formula of the traffic is asked for by commands that do without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .traffic import Traffic, expected_traffic

if TYPE_CHECKING:
    from .cache import gather_cache
    from .prefill import Prefilled, prefill_in_parallel
    from .session import SequenceParallel, sequence_parallel

_WHERE = {
    "Prefilled": "prefill",
    "SequenceParallel": "session",
    "gather_cache": "cache",
    "prefill_in_parallel": "prefill",
    "sequence_parallel": "session",
}
__all__ = [
    "Prefilled",
    "SequenceParallel",
    "Traffic",
    "expected_traffic",
    "gather_cache",
    "prefill_in_parallel",
    "sequence_parallel",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
