"""Time and memory of one attention layer in a training step, forward and backward, as the text grows: hard routing with
gradients for its groups beside full attention and the dense soft gate. Each cell is a process of its own.

    python scripts/bench_training.py --json results/training_cost.json
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from focus_kernels import focus_attention, gated_attention
from focus_retrofit import FocusConfig
from focus_retrofit.files import write_atomically
from focus_retrofit.masks import Layout
from focus_retrofit.router import Routing
from focus_retrofit.soft import soft_attention

HEADS, KV_HEADS, SIZE, GROUPS, WINDOW = 9, 3, 64, 8, 128
METHODS = {
    "full": "full attention, FlashAttention",
    "hard": "lm-hard, explore = 1 (what was seen)",
    "explore": "lm-hard, explore = 8 (everything)",
    "soft": "lm, soft gate",
}
LONGEST = {"soft": 4096}  # its pairs are written out


def step(method: str, q: Tensor, k: Tensor, v: Tensor, scores: Tensor) -> None:
    """One forward and backward."""
    groups, soft = scores.detach().topk(1, -1).indices, scores.softmax(-1)
    options = {"num_groups": GROUPS, "window": WINDOW}
    if method == "full":
        out: Any = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    elif method == "soft":
        config = FocusConfig(num_groups=GROUPS, top_k=1, window=WINDOW)
        routed = Routing(Layout(1, q.shape[2], None, q.device), scores, groups, None)
        focus: Any = SimpleNamespace(config=config, dense_below=0)
        more = {"temperature": None, "softcap": None, "sink_logits": None, "dropout": 0.0}
        out = soft_attention(q, k, v, routed, focus, scale=SIZE**-0.5, **more)
    else:
        explored = soft.detach().topk(1 if method == "hard" else GROUPS, -1).indices
        out = gated_attention(q, k, v, groups, soft, explored=explored, **options)
    out.backward(torch.ones_like(out))


def cell(method: str, length: int, repeats: int) -> dict[str, float]:
    """Seconds (best of several) and bytes beyond what the inputs take."""
    torch.manual_seed(0)
    shapes = ((HEADS, SIZE), (KV_HEADS, SIZE), (KV_HEADS, SIZE))
    q, k, v = (torch.randn(1, h, length, d, requires_grad=True) for h, d in shapes)
    scores = torch.randn(1, length, GROUPS).mul(4).requires_grad_()
    focus_attention(q[:, :, :64], k[:, :, :64], v[:, :, :64], scores[:, :64].topk(1).indices, num_groups=8, window=8)
    before, times = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(repeats):
        begun = time.perf_counter()
        step(method, q, k, v, scores)
        times.append(time.perf_counter() - begun)
        q.grad = k.grad = v.grad = scores.grad = None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": min(times), "bytes": peak * 1024}


def growth(rows: list[dict[str, Any]], what: str) -> float | None:
    """Exponent of the length over the last doubling."""
    if len(rows) < 2 or rows[-2][what] <= 0:
        return None
    return math.log(rows[-1][what] / rows[-2][what]) / math.log(rows[-1]["length"] / rows[-2]["length"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384,32768")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(cell(options.cell[0], int(options.cell[1]), options.repeats)))
        return
    rows: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
    for length in map(int, options.lengths.split(",")):
        for method in METHODS:
            if length > LONGEST.get(method, length):
                continue
            command = [sys.executable, __file__, "--repeats", str(options.repeats), "--cell", method, str(length)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows[method].append({"length": length, **found})
            ratio = rows["full"][-1]["seconds"] / found["seconds"]
            print(
                f"{length:6} {METHODS[method]:38} {found['seconds']:8.3f} s  {found['bytes'] / 1e6:8.0f} MB  "
                f"{ratio:5.2f}x full",
                flush=True,
            )
    results = {
        "command": " ".join(["python", "scripts/bench_training.py", *sys.argv[1:]]),
        "layer": {"heads": HEADS, "kv_heads": KV_HEADS, "size": SIZE, "groups": GROUPS, "top_k": 1, "window": WINDOW},
        "threads": torch.get_num_threads(),
        "methods": {
            method: {
                "title": METHODS[method],
                "rows": found,
                "time_exponent": growth(found, "seconds"),
                "memory_exponent": growth(found, "bytes"),
            }
            for method, found in rows.items()
        },
    }
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.json, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
