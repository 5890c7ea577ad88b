"""Retrofit frozen causal language models with Focus attention."""

__version__ = "0.1.0"
