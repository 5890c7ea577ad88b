"""How good a model is with Focus, and with what one would use instead."""

from __future__ import annotations

from .methods import METHODS, Method, attending, evaluate, label, parse_methods, prepare
from .perplexity import perplexity

__all__ = ["METHODS", "Method", "attending", "evaluate", "label", "parse_methods", "perplexity", "prepare"]
