"""Which engine serves a call when the caller does not say; set by `python -m focus_kernels.bench --engines`."""

from __future__ import annotations

from .call import Call


def pick_engine(call: Call, spare_columns: int = 1 << 30) -> str:
    """sorted where it can serve, needs no penalty in its buckets and has room for the band's; else chunked."""
    if call.engine != "auto":
        return call.engine
    problem = call.problem
    if problem.needs_chunked or problem.softcap is not None or not problem.probes_one:
        return "chunked"
    return "sorted" if problem.num_groups <= spare_columns else "chunked"
