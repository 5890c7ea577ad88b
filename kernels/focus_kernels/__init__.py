"""Focus attention: exact sparse attention from standard FlashAttention calls merged by logsumexp.

What needs torch is imported on first use: command lines that only print their help do not wait for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import FocusError

if TYPE_CHECKING:
    from .api import focus_attention, which_backend
    from .attend import attend_chunk
    from .backends import BackendError, available_backends
    from .gated import gated_attention
    from .lists import attend_lists
    from .reference import reference_attention
    from .stream import KeyBuckets

__version__ = "0.1.0"
_WHERE = {
    "BackendError": "backends",
    "KeyBuckets": "stream",
    "attend_chunk": "attend",
    "attend_lists": "lists",
    "available_backends": "backends",
    "focus_attention": "api",
    "gated_attention": "gated",
    "reference_attention": "reference",
    "which_backend": "api",
}
__all__ = [
    "BackendError",
    "FocusError",
    "KeyBuckets",
    "attend_chunk",
    "attend_lists",
    "available_backends",
    "focus_attention",
    "gated_attention",
    "reference_attention",
    "which_backend",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
