"""Focus attention: exact sparse attention from standard FlashAttention calls merged by logsumexp."""

from .api import focus_attention
from .backends import BackendError, available_backends
from .problem import FocusError
from .reference import reference_attention

__version__ = "0.1.0"
__all__ = [
    "BackendError",
    "FocusError",
    "available_backends",
    "focus_attention",
    "reference_attention",
]
