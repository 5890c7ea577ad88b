"""One result: a part at a length, Focus against the fastest full attention of the same run."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
FULL, FOCUS = "full: ", "focus"  # how methods are named
FIELDS = {
    "part": "kernel, prefill or decode",
    "tokens": "length of the sequence; for decode, of the prompt",
    "full_seconds": "best time of the fastest full attention; for decode, per token",
    "full_method": "which one that was",
    "focus_seconds": "best time of Focus",
    "speedup": "full_seconds / focus_seconds",
    "speedup_over_default": "over full attention as the model runs it by itself; kernel: over one causal call",
    "density": "share of causal pairs really computed; for decode, share of the keys read",
    "attention_share": "share of full_seconds that is attention of the layers that Focus took",
    "bound": "what no sparse attention of this density can exceed, the rest of the model included",
    "memory": "peak of Focus over that of full attention, without the weights; for decode, of the caches; or null",
    "repeats": "times Focus was timed",
    "all": "seconds by method",
    "setup": "what was run",
    "dtype": "of weights and activations",
    "device": "where",
    "threads": "of torch",
    "beyond_positions": "longer than the model's positions reach: the speed is real, the text is not",
}


def make_row(
    part: str,
    tokens: int,
    times: dict[str, list[float]],
    *,
    default: str,
    density: float,
    attention_share: float | None,
    memory: float | None,
    beyond_positions: bool = False,
    **facts: Any,
) -> Row:
    """From the seconds of every method, those of full attention being called `full: ...`; `facts`: setup, dtype,
    device, threads."""
    best = {name: min(seconds) for name, seconds in times.items() if seconds}
    fastest = min((name for name in best if name.startswith(FULL)), key=best.__getitem__)
    full, focus = best[fastest], best[FOCUS]
    return {
        "part": part,
        "tokens": tokens,
        "full_seconds": full,
        "full_method": fastest.removeprefix(FULL),
        "focus_seconds": focus,
        "speedup": full / focus,
        "speedup_over_default": best[default] / focus if default in best else None,
        "density": density,
        "attention_share": attention_share,
        "bound": None if attention_share is None else bound(attention_share, density),
        "memory": memory,
        "repeats": len(times[FOCUS]),
        "all": times,
        **facts,
        "beyond_positions": beyond_positions,
    }


def bound(attention_share: float, density: float) -> float:
    """Amdahl's: only attention shrinks, to its density."""
    return 1 / (1 - attention_share * (1 - density))
