"""`python -m focus_kernels.bench`: lengths from 1K to 1M, Focus against full attention, as a table and JSON."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ..files import write_atomically
from . import methods
from .gate import Red, check
from .measure import Action, interleaved, peak_bytes
from .problems import Layer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m focus_kernels.bench", description=__doc__)
    add = parser.add_argument
    add("--lengths", default="1K,4K,16K,64K", help="tokens, comma separated; K and M are 1024 and 1024^2 (%(default)s)")
    add("--groups", type=int, default=8, help="number of groups K (%(default)s)")
    add("--top-k", type=int, default=1, help="groups per token k (%(default)s)")
    add("--match", default="probe", choices=["probe", "share"])
    add("--window", type=int, default=128)
    add("--sinks", type=int, default=4)
    add("--heads", default="1", help="query heads, or query/key heads as in 9/3 (%(default)s)")
    add("--head-size", type=int, default=64)
    add("--dtype", default="fp32", choices=DTYPES)
    add("--device", default="cpu")
    add("--backends", default="auto", help="e.g. cpu:sorted,cpu:chunked,flex (%(default)s)")
    add("--stream", type=int, default=0, metavar="CHUNK", help="also the streaming form in chunks of this size")
    add("--backward", action="store_true", help="time forward and backward together")
    add("--dense", action="store_true", help="also SDPA with a dense mask, up to 16K")
    add(
        "--exact", action="store_true", help="time all of full attention above 128K too, not evenly spaced blocks of it"
    )
    add("--repeats", type=int, default=5, help="best of this many, in turn (%(default)s; more up to 16K, 2 above 128K)")
    add("--json", type=Path, help="write the results here")
    return parser.parse_args(argv)


def count(text: str) -> int:
    units = {"K": 1024, "M": 1024**2}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1].upper() in units else int(text)


def actions_for(layer: Layer, args: argparse.Namespace, note: Callable[[str], None]) -> tuple[dict[str, Action], bool]:
    """Everything to time on a layer, full attention first; and whether full attention is only sampled."""
    sampled = layer.tokens > methods.SAMPLED_ABOVE and not args.exact and not args.backward
    backends = args.backends.split(",")
    actions: dict[str, Action] = {}
    if args.backward:
        actions["full"] = partial(methods.with_backward, layer, methods.full_for_grad)
        for backend in backends:
            actions[f"focus {backend}"] = partial(methods.with_backward, layer, methods.focus_for_grad(layer, backend))
        return actions, False
    blocks = methods.sampled_starts(layer.tokens) if sampled else list(range(0, layer.tokens, methods.BLOCK))
    if not sampled:
        actions["full"] = partial(methods.causal, *layer.tensors)
    if layer.device == "cpu":
        actions["full, balanced"] = partial(methods.causal_in_blocks, *layer.tensors, blocks)
    timed: dict[str, Callable[[], torch.Tensor]] = {
        f"focus {backend}": partial(methods.focus, layer, backend) for backend in backends
    }
    if args.stream:
        timed[f"stream {args.stream}"] = partial(methods.stream, layer, args.stream)
    if args.dense and layer.tokens <= 16384:
        timed["dense mask"] = partial(methods.dense_mask, layer)
    for name, action in timed.items():
        note(f"checking {name}")
        check(layer, action(), name)
    return actions | timed, sampled


def measure(layer: Layer, args: argparse.Namespace, note: Callable[[str], None]) -> list[dict[str, Any]]:
    """One result per method at one length."""
    with torch.set_grad_enabled(args.backward):
        actions, sampled = actions_for(layer, args, note)
        repeats = args.repeats if layer.tokens <= methods.SAMPLED_ABOVE else min(args.repeats, 2)
        if layer.tokens <= 16384 and repeats > 1:  # short ones are noisy, and cheap
            repeats *= max(16384 // layer.tokens, 1) * 3
        times = interleaved(actions, repeats, note)
        if sampled:
            share = methods.sampled_share(layer.tokens)
            times["full, balanced"] = [t / share for t in times["full, balanced"]]
        note("memory")
        memory = {name: peak_bytes(action) for name, action in actions.items()} if layer.tokens <= 1 << 18 else {}
        engines = {name: methods.engine_of(layer, name) for name in actions}
        plans: dict[str, Action] = {e: partial(methods.plan, layer, e) for e in engines.values() if e}
        planning = {engine: min(found) for engine, found in interleaved(plans, 5, note).items()}
    best = {name: min(t) for name, t in times.items()}
    full = min(seconds for name, seconds in best.items() if name.startswith("full"))
    bound = layer.full_pairs / layer.visible
    results = []
    for name, seconds in best.items():
        sparse = not name.startswith("full")
        results.append(
            {
                "method": name,
                "tokens": layer.tokens,
                "seconds": seconds,
                "median_seconds": median(times[name]),
                "all_seconds": times[name],
                "repeats": len(times[name]),
                "sampled": sampled and not sparse,
                "density": layer.visible / layer.full_pairs if sparse else 1.0,
                "pair_bound": bound if sparse else 1.0,
                "speedup": full / seconds,
                "speedup_over_one_call": best["full"] / seconds if "full" in best else None,
                "efficiency": full / seconds / bound if sparse else full / seconds,
                "plan_share": planning[engine] / seconds if (engine := engines[name]) else None,
                "peak_extra_bytes": memory.get(name),
                "memory_ratio": ratio(layer, memory, name),
            }
        )
    return results


def ratio(layer: Layer, memory: dict[str, int], name: str) -> float | None:
    """Inputs and everything allocated, against the same of full attention."""
    if name not in memory or "full" not in memory:
        return None
    return (layer.input_bytes + memory[name]) / (layer.input_bytes + memory["full"])


def show(result: dict[str, Any]) -> str:
    def number(key: str, form: str) -> str:
        return format(result[key], form) if result[key] is not None else "-"

    cells = [
        f"{result['tokens']:>8}",
        f"{result['method'] + ('*' if result['sampled'] else ''):<22}",
        f"{result['seconds'] * 1e3:>11.1f}",
        f"{result['density']:>8.1%}",
        f"{result['pair_bound']:>6.2f}",
        f"{result['speedup']:>8.2f}",
        f"{number('speedup_over_one_call', '.2f'):>9}",
        f"{result['efficiency']:>6.2f}",
        f"{number('plan_share', '.1%'):>6}",
        f"{number('memory_ratio', '.2f'):>7}",
    ]
    return " ".join(cells)


HEADER = (
    f"{'tokens':>8} {'method':<22} {'ms':>11} {'density':>8} {'bound':>6} {'speedup':>8} {'one call':>9} "
    f"{'eff.':>6} {'plan':>6} {'memory':>7}"
)


def machine() -> dict[str, Any]:
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "cpu": model,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def layer_of(args: argparse.Namespace) -> Layer:
    """The layer that the options describe; its length is still to be set."""
    q_heads, _, kv_heads = args.heads.partition("/")
    return Layer(
        tokens=0,
        num_groups=args.groups,
        top_k=args.top_k,
        window=args.window,
        sinks=args.sinks,
        match=args.match,
        q_heads=int(q_heads),
        kv_heads=int(kv_heads or q_heads),
        size=args.head_size,
        dtype=DTYPES[args.dtype],
        device=args.device,
    )


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    base = layer_of(args)

    def note(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text} ...", end="", file=sys.stderr, flush=True)

    print(
        f"K={args.groups} k={args.top_k} {args.match}, window {args.window}, {args.sinks} sinks, heads {args.heads} of "
        f"{args.head_size}, {args.dtype}{', forward + backward' if args.backward else ''}; "
        f"{torch.get_num_threads()} threads"
    )
    print(HEADER)
    results: list[dict[str, Any]] = []
    for text in args.lengths.split(","):
        layer = replace(base, tokens=count(text))
        try:
            found = measure(layer, args, note)
        except Red as red:
            note("")
            print(f"no speed is reported: {red}", file=sys.stderr)
            return 1
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
        for result in found:
            print(show(result), flush=True)
        results += found
    print("speedup: over the faster form of full attention; one call: over a single causal call;")
    print("eff.: speedup / bound; plan: share of index planning; memory: inputs and peak, over full attention's")
    if any(r["sampled"] for r in results):
        print(f"* timed on {methods.SAMPLED_BLOCKS} evenly spaced query blocks against their whole prefix, and scaled")
    if args.json:
        layer_facts = {k: str(v) if k == "dtype" else v for k, v in vars(base).items() if k != "tokens"}
        command = ["python", "-m", "focus_kernels.bench", *(argv if argv is not None else sys.argv[1:])]
        record = {"schema": 1, "command": command, "machine": machine(), "layer": layer_facts, "results": results}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.json, json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
