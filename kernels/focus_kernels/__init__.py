"""Focus attention: exact sparse attention from standard FlashAttention calls merged by logsumexp."""

from .api import focus_attention, which_backend
from .attend import attend_chunk
from .backends import BackendError, available_backends
from .gated import gated_attention
from .problem import FocusError
from .reference import reference_attention
from .stream import KeyBuckets

__version__ = "0.1.0"
__all__ = [
    "BackendError",
    "FocusError",
    "KeyBuckets",
    "attend_chunk",
    "available_backends",
    "focus_attention",
    "gated_attention",
    "reference_attention",
    "which_backend",
]
