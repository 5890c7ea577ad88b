"""Memory that ran out: every library says it in another way, a user wants one line."""

from __future__ import annotations

import errno
import re

ADVICE = (
    "what takes less: a shorter text or a smaller batch, smaller chunks of a long prompt (--chunk), keys and values "
    "held in bfloat16 (--cache-dtype) or in files (--spill)"
)
_AMOUNT = re.compile(r"(?:tried to allocate|Tried to allocate) ([\d.]+) ?(bytes|KiB|MiB|GiB)")


def out_of_memory(error: BaseException) -> str | None:
    """One line on an error that means that memory ran out; None for any other error."""
    told = str(error)
    ours = (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in told)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    )
    if not ours:
        return None
    found = _AMOUNT.search(told)
    amount = f", {_readable(float(found[1]), found[2])} were asked for" if found else ""
    return f"out of memory{amount}: {ADVICE}"


def _readable(number: float, unit: str) -> str:
    total = number * {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    return f"{total / 1e9:.2f} GB" if total >= 1e7 else f"{total / 1e6:.2f} MB"
