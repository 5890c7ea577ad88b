"""The one error of this package; apart, so that naming it costs nothing."""

from __future__ import annotations


class FocusError(ValueError):
    """A bad argument: the message names the value, what was expected and the way out."""
