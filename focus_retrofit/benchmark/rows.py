"""One result: a part at a length, Focus against the fastest full attention of the same run."""

from __future__ import annotations

from typing import Any, NamedTuple

Row = dict[str, Any]
FULL, FOCUS = "full: ", "focus"  # how methods are named
FIELDS = {
    "part": "kernel, prefill, decode or training",
    "tokens": "length of the sequence; for decode, of the prompt",
    "full_seconds": "best time of the fastest full attention; for decode, per token",
    "full_method": "which one that was",
    "sampled": "how full attention was timed where not in whole, and scaled; or null",
    "chunk": "for prefill, tokens read at once, and full_bytes are of full attention in such chunks; or null",
    "filled": "for decode, where the full cache's keys came from if not from a prefill with full attention; or null",
    "focus_seconds": "best time of Focus",
    "speedup": "full_seconds / focus_seconds",
    "speedup_over_default": "over full attention as the model runs it by itself; a layer: over one causal call",
    "density": "share of causal pairs computed, in training by the forward pass; for decode, share of the keys read",
    "attention_share": "share of full_seconds that is attention of the layers that Focus took",
    "bound": "speedup that nothing of this density can exceed, the rest of the model included; in training, nothing "
    "that does this much arithmetic, forward and backward",
    "full_bytes": "peak memory of full attention beyond weights and inputs; kernel: with queries, keys and values; for "
    "decode, of the cache; or null",
    "focus_bytes": "the same of Focus; or null",
    "memory": "focus_bytes / full_bytes; or null",
    "repeats": "times Focus was timed",
    "all": "seconds by method",
    "setup": "what was run",
    "dtype": "of weights and activations",
    "device": "where",
    "threads": "of torch",
    "beyond_positions": "longer than the model's positions reach: the speed is real, the text is not",
}


class Peaks(NamedTuple):
    """Bytes that each side holds at most."""

    full: int
    focus: int


def make_row(
    part: str,
    tokens: int,
    times: dict[str, list[float]],
    *,
    default: str,
    density: float,
    attention_share: float | None,
    memory: Peaks | None,
    sampled: str | None = None,
    chunk: int | None = None,
    filled: str | None = None,
    work: float | None = None,
    beyond_positions: bool = False,
    **facts: Any,
) -> Row:
    """From the seconds of every method, those of full attention being called `full: ...`; `facts`: setup, dtype,
    device, threads. `work`: what is computed over what full attention computes, where that is not the density."""
    best = {name: min(seconds) for name, seconds in times.items() if seconds}
    fastest = min((name for name in best if name.startswith(FULL)), key=best.__getitem__)
    full, focus = best[fastest], best[FOCUS]
    return {
        "part": part,
        "tokens": tokens,
        "full_seconds": full,
        "full_method": fastest.removeprefix(FULL),
        "sampled": sampled,
        "chunk": chunk,
        "filled": filled,
        "focus_seconds": focus,
        "speedup": full / focus,
        "speedup_over_default": best[default] / focus if default in best else None,
        "density": density,
        "attention_share": attention_share,
        "bound": None if attention_share is None else bound(attention_share, density if work is None else work),
        "full_bytes": None if memory is None else memory.full,
        "focus_bytes": None if memory is None else memory.focus,
        "memory": memory.focus / memory.full if memory and memory.full else None,
        "repeats": len(times[FOCUS]),
        "all": times,
        **facts,
        "beyond_positions": beyond_positions,
    }


def bound(attention_share: float, work: float) -> float:
    """Amdahl's: only attention shrinks, to the share of its work that is left."""
    return 1 / (1 - attention_share * (1 - work))
