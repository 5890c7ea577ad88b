"""Which engine serves a call when the caller does not say; set by `python -m focus_kernels.bench --engines`."""

from __future__ import annotations

from .call import Call


def pick_engine(call: Call, length: int) -> str:
    """sorted where it can serve (it masks nothing, so it wins at every length measured), else chunked."""
    if call.engine != "auto":
        return call.engine
    problem = call.problem
    if problem.needs_chunked or problem.softcap is not None or not problem.probes_one:
        return "chunked"
    return "sorted"
