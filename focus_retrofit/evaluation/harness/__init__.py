"""Benchmarks through lm-evaluation-harness: the model type `focus`, tasks that need no hub, and methods compared on the
same items."""

from __future__ import annotations

from pathlib import Path

from focus_kernels import FocusError

try:
    import lm_eval.models  # noqa: F401 - its own model types first: it leaves them out of a registry that has any
    from lm_eval.api.registry import model_registry
except ImportError as error:
    raise FocusError("benchmarks need lm-evaluation-harness: pip install focus-retrofit[benchmarks]") from error

from .rows import check_within, compare, without_items
from .run import run_tasks

TASKS = Path(__file__).parent / "tasks"
model_registry.register("focus", target="focus_retrofit.evaluation.harness.model:FocusLM")

__all__ = ["TASKS", "check_within", "compare", "run_tasks", "without_items"]
