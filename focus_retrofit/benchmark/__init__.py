"""The speed of a retrofitted model against the same model with full attention; imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compare import compare_benches
    from .decode import bench_decode
    from .gate import check_model
    from .growth import cost_growth, fit_exponent
    from .kernel import bench_kernel
    from .options import BenchConfig, parse_lengths
    from .plot import draw_bench, plot_bench, plot_records
    from .prefill import bench_prefill
    from .records import bench_record, keep_rows, machine_facts, read_bench, versions, write_bench
    from .run import run_bench
    from .show import table, verdicts
    from .show_compare import comparison
    from .step import bench_step
    from .text import sample_ids
    from .training import bench_training

_WHERE = {
    "BenchConfig": "options",
    "bench_decode": "decode",
    "bench_kernel": "kernel",
    "bench_prefill": "prefill",
    "bench_record": "records",
    "bench_step": "step",
    "bench_training": "training",
    "check_model": "gate",
    "compare_benches": "compare",
    "comparison": "show_compare",
    "cost_growth": "growth",
    "draw_bench": "plot",
    "fit_exponent": "growth",
    "keep_rows": "records",
    "machine_facts": "records",
    "parse_lengths": "options",
    "plot_bench": "plot",
    "plot_records": "plot",
    "read_bench": "records",
    "run_bench": "run",
    "sample_ids": "text",
    "table": "show",
    "verdicts": "show",
    "versions": "records",
    "write_bench": "records",
}
__all__ = [
    "BenchConfig",
    "bench_decode",
    "bench_kernel",
    "bench_prefill",
    "bench_record",
    "bench_step",
    "bench_training",
    "check_model",
    "compare_benches",
    "comparison",
    "cost_growth",
    "draw_bench",
    "fit_exponent",
    "keep_rows",
    "machine_facts",
    "parse_lengths",
    "plot_bench",
    "plot_records",
    "read_bench",
    "run_bench",
    "sample_ids",
    "table",
    "verdicts",
    "versions",
    "write_bench",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f".{_WHERE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
