"""`python -m focus_kernels.bench.decode`: time per decoded token of a stack of layers, Focus against a full cache."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from ..files import write_atomically
from ..pool import SLACK
from . import token
from .__main__ import DTYPES, count, layer_of, machine
from .gate import Red
from .measure import Action, interleaved
from .problems import Layer
from .token import FULL, Memory

COPIED = "cat + sdpa"
HOPELESS = 1.2  # times the strongest full cache's step
HEADER = (
    f"{'tokens':>8} {'method':<16} {'attend ms':>10} {'step ms':>9} {'MB read':>8} {'bound':>6} {'speedup':>8} "
    f"{'eff.':>6} {'cache MB':>9} {'ratio':>6}"
)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m focus_kernels.bench.decode", description=__doc__)
    add = parser.add_argument
    add("--lengths", default="4K,16K,64K", help="tokens in the cache, comma separated (%(default)s)")
    add("--layers", type=int, default=30, help="attention layers (%(default)s)")
    add("--groups", type=int, default=8, help="number of groups K (%(default)s)")
    add("--top-k", type=int, default=1, help="groups per token k (%(default)s)")
    add("--match", default="probe", choices=["probe", "share"])
    add("--window", type=int, default=128)
    add("--sinks", type=int, default=4)
    add("--heads", default="9/3", help="query heads, or query/key heads (%(default)s)")
    add("--head-size", type=int, default=64)
    add("--dtype", default="fp32", choices=DTYPES)
    add("--burst", type=int, default=8, help="tokens in a row, of which the median counts (%(default)s)")
    add("--repeats", type=int, default=8, help="best of this many bursts, in turn (%(default)s; more below 16K)")
    add("--json", type=Path, help="write the results here")
    parser.set_defaults(device="cpu")
    return parser.parse_args(argv)


def measure(layer: Layer, layers: int, repeats: int, burst: int, note: Callable[[str], None]) -> dict[str, Any]:
    """One length: every way to attend, with and without taking in the token; of each burst of tokens, as generation
    makes them, the median."""
    note(f"filling {layers} caches of {layer.tokens} tokens")
    stack = [Memory(layer, seed) for seed in range(layers)]
    for name in token.check(stack):
        note(f"checking {name}")
    token.attend_focus(stack[1:-1], append=True)  # all streams are one token further, and in one state

    def draw() -> None:
        for memory in stack:
            memory.token = memory.draw()

    actions: dict[str, Action] = {}
    for name, attend in FULL.items():
        actions[name] = partial(token.attend_full, stack, attend, True)
        actions[f"{name}, attend"] = partial(token.attend_full, stack, attend, False)
    actions[COPIED] = partial(token.attend_copied, stack)
    actions["focus"] = partial(token.attend_focus, stack, True)
    actions["focus, attend"] = partial(token.attend_focus, stack, False)
    times: dict[str, list[float]] = {name: [] for name in actions}
    gc.collect()
    gc.freeze()  # or each collection would look at every span of every stream
    for repeat in range(repeats):
        left_out = hopeless(times) if repeat >= 2 else set()
        for name in [name for name in actions if name not in left_out]:
            some = []
            for _ in range(burst):
                draw()  # just written, as projections leave them
                some += interleaved({name: actions[name]}, 1, note)[name]
            times[name].append(median(some) * 1e3)
    gc.unfreeze()
    best = {name: min(t) for name, t in times.items()}
    strongest = min(FULL, key=best.__getitem__)
    return summary(stack, times, best, strongest)


def hopeless(times: dict[str, list[float]]) -> set[str]:
    """Ways to read a full cache that are not going to be the strongest: more rounds of the others tell more."""
    steps = {name: min(times[name]) for name in (*FULL, COPIED)}
    slow = {name for name, step in steps.items() if step > HOPELESS * min(steps.values())}
    return slow | {f"{name}, attend" for name in slow}


def summary(
    stack: list[Memory], times: dict[str, list[float]], best: dict[str, float], strongest: str
) -> dict[str, Any]:
    layer = stack[0].layer
    row = 2 * layer.kv_heads * layer.size * stack[0].key.element_size()  # bytes of a key and its value
    seen = mean(memory.keys_read() for memory in stack)
    bound = (layer.tokens + 1) / seen
    held = sum(memory.stream.memory() for memory in stack)
    plain = sum(sum(memory.stream.lengths) * row for memory in stack)
    growth = min(interleaved({"grow": partial(_grow, stack[0])}, 3, lambda _: None)["grow"]) * 1e3
    full = [
        {
            "method": name,
            "attend_ms": best[f"{name}, attend"],
            "step_ms": best[name],
            "step_ms_median": median(times[name]),
            "strongest": name == strongest,
        }
        for name in FULL
    ]
    return {
        "tokens": layer.tokens,
        "repeats": len(times["focus"]),
        "full": full,
        "cat_step_ms": best[COPIED],
        "focus_attend_ms": best["focus, attend"],
        "focus_step_ms": best["focus"],
        "focus_step_ms_median": median(times["focus"]),
        "focus_growth_ms": growth * len(stack) * SLACK / layer.tokens,
        "full_bytes_read": (layer.tokens + 1) * row * len(stack),
        "focus_bytes_read": seen * row * len(stack),
        "pair_bound": bound,
        "speedup": best[strongest] / best["focus"],
        "speedup_attend": min(best[f"{name}, attend"] for name in FULL) / best["focus, attend"],
        "speedup_over_cat": best[COPIED] / best["focus"],
        "efficiency": best[strongest] / best["focus"] / bound,
        "full_cache_bytes": plain,
        "focus_cache_bytes": held,
        "cache_ratio": held / plain,
    }


def _grow(memory: Memory) -> None:
    """What happens when a bucket is full: all of them move."""
    pool = memory.stream.pool
    pool.rebuild({name: name for name in pool.spans})


def show(result: dict[str, Any]) -> str:
    """A row per method; the strongest full cache is marked."""

    def line(name: str, attend: float | None, step: float, read: float, *rest: str) -> str:
        shown = "-" if attend is None else f"{attend:.2f}"
        cells = [f"{result['tokens']:>8}", f"{name:<16}", f"{shown:>10}", f"{step:>9.2f}", f"{read / 1e6:>8.1f}", *rest]
        return " ".join(cells)

    cache = f"{result['full_cache_bytes'] / 1e6:>9.1f} {1:>6.2f}"
    lines = []
    for full in result["full"]:
        name, mark = full["method"], "<" if full["strongest"] else ""
        against = f"{1:>6.2f} {result['focus_step_ms'] * result['speedup'] / full['step_ms']:>7.2f}{mark:1} {'':>6}"
        lines.append(line(name, full["attend_ms"], full["step_ms"], result["full_bytes_read"], against, cache))
    against = f"{1:>6.2f} {result['speedup'] / result['speedup_over_cat']:>7.2f}  {'':>6}"
    lines.append(line(COPIED, None, result["cat_step_ms"], result["full_bytes_read"], against, cache))
    against = f"{result['pair_bound']:>6.2f} {result['speedup']:>7.2f}  {result['efficiency']:>6.2f}"
    cache = f"{result['focus_cache_bytes'] / 1e6:>9.1f} {result['cache_ratio']:>6.2f}"
    focus = (result["focus_attend_ms"], result["focus_step_ms"], result["focus_bytes_read"])
    return "\n".join([*lines, line("focus", *focus, against, cache)])


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    base = layer_of(args)

    def note(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text} ...", end="" if text else "\r\033[K", file=sys.stderr, flush=True)

    print(
        f"one token through {args.layers} layers: K={args.groups} k={args.top_k} {args.match}, window {args.window}, "
        f"{args.sinks} sinks, heads {args.heads} of {args.head_size}, {args.dtype}; {torch.get_num_threads()} threads"
    )
    print(HEADER)
    results: list[dict[str, Any]] = []
    for text in args.lengths.split(","):
        layer = replace(base, tokens=count(text))
        repeats = args.repeats
        if layer.tokens < 16384 and repeats > 1:  # short ones are noisy, and cheap
            repeats *= max(16384 // layer.tokens, 1)
        try:
            with torch.no_grad():
                result = measure(layer, args.layers, repeats, args.burst, note)
        except Red as red:
            print(f"no speed is reported: {red}", file=sys.stderr)
            return 1
        note("")
        print(show(result), flush=True)
        results.append(result)
    print("step: the token taken in and attended, in place for a full cache, copied for cat; speedup and <: over the")
    print(
        "strongest full cache's step; eff.: speedup / bound; ratio: memory held over that of the plain keys and values"
    )
    if args.json:
        facts = {k: str(v) if k == "dtype" else v for k, v in vars(base).items() if k != "tokens"}
        command = ["python", "-m", "focus_kernels.bench.decode", *(argv if argv is not None else sys.argv[1:])]
        record = {
            "schema": "decode-1",
            "command": command,
            "machine": machine(),
            "layer": facts,
            "layers": args.layers,
            "results": results,
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.json, json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
