"""Taking turns: every way is timed once per round, so that a noisy neighbour hits all alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from tqdm.auto import tqdm

from focus_kernels.bench.measure import Action, interleaved, peak_bytes

from .rows import FOCUS, FULL, Peaks

Note = Callable[[str], None]
HOPELESS = 1.5  # times the fastest full attention


@dataclass(frozen=True)
class Way:
    """What is timed, and what holds around it without being timed."""

    run: Action
    around: Callable[[], AbstractContextManager[object]] = nullcontext


def rounds(repeats: int, tokens: int) -> int:
    """More where a length is short: noisier, and cheaper."""
    return repeats * min(max(2048 // tokens, 1), 4) if repeats > 1 else repeats


def in_turn(ways: dict[str, Way], repeats: int, note: Note, always: str = "") -> dict[str, list[float]]:
    """Seconds of each way; a full attention that was hopeless twice is not timed again, unless it is `always`."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats):
        hopeless = _hopeless(times) - {always} if repeat > 1 else set()
        for name in [name for name in ways if name not in hopeless]:
            note(f"{name} ({repeat + 1} of {repeats})")
            with ways[name].around():
                times[name] += interleaved({name: ways[name].run}, 1, _silent)[name]
    return times


def _hopeless(times: dict[str, list[float]]) -> set[str]:
    best = {name: min(seconds) for name, seconds in times.items() if name.startswith(FULL)}
    limit = HOPELESS * min(best.values(), default=0.0)
    return {name for name, seconds in best.items() if seconds > limit}


def fastest_full(times: dict[str, list[float]]) -> str:
    return min((name for name in times if name.startswith(FULL)), key=lambda name: min(times[name]))


def memory_peaks(ways: dict[str, Way], full: str, note: Note) -> Peaks:
    """What a full attention and Focus hold at most, in one more run of each."""
    return Peaks(peak_of(ways, full, note), peak_of(ways, FOCUS, note))


def peak_of(ways: dict[str, Way], name: str, note: Note) -> int:
    """Bytes beyond what was held before, in one more run."""
    note(f"memory of {name}")
    with ways[name].around():
        return peak_bytes(ways[name].run)


@contextmanager
def steps(part: str, lengths: list[int], progress: bool) -> Iterator[tuple[Iterator[int], Note]]:
    """The lengths one by one under a progress bar, and a function that says on it what is running."""
    bar = tqdm(total=len(lengths), desc=part, unit="length", leave=False, disable=None if progress else True)
    with bar, _collected():
        where = [""]

        def note(text: str) -> None:
            bar.set_postfix_str(where[0] + text)

        def one_by_one() -> Iterator[int]:
            for tokens in lengths:
                where[0] = f"{tokens:,} tokens, "
                yield tokens
                bar.update()

        yield one_by_one(), note


@contextmanager
def _collected() -> Iterator[None]:
    """What is loaded is no garbage: or each collection, of which there is one before each timing, would look at it."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _silent(text: str) -> None:
    pass
