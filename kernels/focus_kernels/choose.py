"""Which engine serves a call when the caller does not say; kernels/results has the measurements that say so."""

from __future__ import annotations

from .call import Call


def pick_engine(call: Call, spare_columns: int = 1 << 30) -> str:
    """sorted where it can serve and has room for its penalty columns: it masks nothing, and is faster at every length.

    Sharing k groups, its buckets hold k * k / K of all pairs, some of them penalised: beyond 1 chunked computes fewer.
    """
    if call.engine != "auto":
        return call.engine
    problem = call.problem
    if problem.needs_chunked or problem.softcap is not None or problem.top_k**2 > problem.num_groups > 1:
        return "chunked"
    return "sorted" if problem.num_groups <= spare_columns else "chunked"
