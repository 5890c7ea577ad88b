"""Taking turns: every way is timed once per round, so that a noisy neighbour hits all alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from tqdm.auto import tqdm

from focus_kernels.bench.measure import Action, clocked, peak_bytes

from .rows import FOCUS, FULL, Peaks

Note = Callable[[str], None]
NOTHING = "no attention"  # the way whose time is not attention's
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
    """Seconds of each way, by `in_rounds`, one after the other."""

    def one_by_one(names: list[str], which: str) -> dict[str, float]:
        found = {}
        for name in names:
            note(f"{name} ({which})")
            with ways[name].around():
                found[name] = seconds_of(ways[name].run)
        return found

    return in_rounds(one_by_one, list(ways), repeats, always)


def in_rounds(
    run: Callable[[list[str], str], dict[str, float]], names: list[str], repeats: int, always: str = ""
) -> dict[str, list[float]]:
    """Seconds of each way in rounds of `run`, which is given their names and which round it is. Every other round the
    slower half of the full attentions is timed no more, down to two: of many that are alike, the luckiest of all would
    be taken for the fastest. `always` is timed whatever it takes."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        left_out = _behind(times, repeat // 2) - {always}
        found = run([name for name in names if name not in left_out], f"{repeat + 1} of {repeats}")
        for name, seconds in found.items():
            times[name].append(seconds)
    return times


def seconds_of(run: Action) -> float:
    """Of one run, without the garbage of those before."""
    gc.collect()
    return clocked(run)


def _behind(times: dict[str, list[float]], cuts: int) -> set[str]:
    """The full attentions that are out of the question after so many cuts."""
    best = {name: min(seconds) for name, seconds in times.items() if name.startswith(FULL) and seconds}
    if not cuts or not best:
        return set()
    order = sorted(best, key=best.__getitem__)
    kept = max(-(-len(order) // 2**cuts), 2)
    return {name for n, name in enumerate(order) if n >= kept or best[name] > HOPELESS * best[order[0]]}


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
