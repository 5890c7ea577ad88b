"""How good a model is with Focus, and with what one would use instead."""

from __future__ import annotations

from .methods import METHODS, attending, evaluate, parse_methods
from .perplexity import perplexity

__all__ = ["METHODS", "attending", "evaluate", "parse_methods", "perplexity"]
