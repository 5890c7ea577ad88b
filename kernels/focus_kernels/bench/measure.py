"""Timing by ratio within one run, and the memory that torch allocates."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..scratch import scratch

Action = Callable[[], object]


def interleaved(actions: dict[str, Action], repeats: int, note: Callable[[str], None]) -> dict[str, list[float]]:
    """Seconds of each action, `repeats` times in turn, so that a noisy neighbour hits them alike."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for repeat in range(repeats):
        for name, action in actions.items():
            note(f"{name} ({repeat + 1} of {repeats})")
            gc.collect()
            times[name].append(clocked(action))
    return times


def clocked(action: Action) -> float:
    """Seconds of one run."""
    synchronise()
    start = time.perf_counter()
    action()
    synchronise()
    return time.perf_counter() - start


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler writes to file descriptor 2 by itself."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def peak_bytes(action: Action) -> int:
    """The most memory that torch holds at once during the action, beyond what it held before."""
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        action()
        return torch.cuda.max_memory_allocated() - before
    scratch.trim(0)  # what an earlier call left must count
    cpu = torch.profiler.ProfilerActivity.CPU
    with _quiet(), torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        action()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak
