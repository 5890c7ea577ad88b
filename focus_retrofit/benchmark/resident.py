"""Memory as the machine feels it: the most that a process had resident, for runs too long to be recorded."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Watched:
    """Peaks of actions by name, beyond what was resident before; nothing where the system does not tell."""

    def __init__(self, wanted: bool):
        self.wanted, self.peaks = wanted, dict[str, int]()

    def around(self, name: str, action: Callable[[], object]) -> Callable[[], object]:
        """The action, its peak noted."""
        return partial(self._run, name, action) if self.wanted else action

    def bytes(self, name: str) -> int:
        """The smallest peak of that name's runs, 0 if it is not known."""
        return self.peaks.get(name, 0)

    def _run(self, name: str, action: Callable[[], object]) -> None:
        before = _begin()
        action()
        peak = _read("VmHWM")
        if before and peak:
            found = peak - before
            self.peaks[name] = min(self.peaks.get(name, found), found)


def _begin() -> int:
    """What is resident once all that is free was given back; the peak starts from it."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        RESET.write_text("5")
    except (OSError, AttributeError):
        return 0
    return _read("VmRSS")


def _read(name: str) -> int:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":")), 0)
