"""Results as one page that opens anywhere: numbers, plots, and the text with its groups."""

from __future__ import annotations

from .write import write_inspection, write_report

__all__ = ["write_inspection", "write_report"]
