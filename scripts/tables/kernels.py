"""Tables of single attention layers, from kernels/results."""

from __future__ import annotations

import json
from typing import Any

from .markdown import ROOT, number, table, tokens

KERNELS = ROOT / "kernels" / "results"
FIRST = ("k8-k1", "long")
HEADLINES = {"k8-k1": ("1/1", "focus cpu:sorted"), "long": ("1/1", "focus auto"), "gqa": ("9/3", "focus cpu:sorted")}


def kernel_records(wanted: set[str] | None = None) -> list[dict[str, Any]]:
    """Result files of the kernel benchmark, the most asked for first; decoding has a schema of its own."""
    paths = sorted(KERNELS.glob("*.json"), key=lambda path: (path.stem not in FIRST, path))
    records = [{"file": path.stem, **json.loads(path.read_text())} for path in paths]
    return [r for r in records if r["schema"] == 1 and (wanted is None or r["file"] in wanted)]


def shape(record: dict[str, Any]) -> str:
    layer = record["layer"]
    text = f"K={layer['num_groups']} k={layer['top_k']} {layer['match']}, heads {layer['q_heads']}/{layer['kv_heads']}"
    return text + (", forward + backward" if "--backward" in record["command"] else "")


def kernel_row(record: dict[str, Any], result: dict[str, Any]) -> list[str]:
    milliseconds = result["seconds"] * 1e3
    return [
        shape(record),
        tokens(result["tokens"]),
        result["method"] + (" (sampled)" if result["sampled"] else ""),
        f"{milliseconds:.1f}" if milliseconds < 1000 else f"{milliseconds:.0f}",
        f"{result['density']:.1%}",
        number(result["pair_bound"]),
        number(result["speedup"]),
        number(result["speedup_over_one_call"]),
        number(result["efficiency"]),
        number(result["memory_ratio"]),
    ]


def machine(record: dict[str, Any]) -> str:
    m = record["machine"]
    return f"{m['cpu']}, {m['threads']} threads, {m['capability']}, torch {m['torch']}"


def every() -> str:
    records = kernel_records()
    rows = [kernel_row(r, one) for r in records for one in r["results"] if not one["method"].startswith("full")]
    where = " and ".join(sorted({machine(r) for r in records}))
    head = "layer | tokens | method | ms | density | bound | speedup | over one call | efficiency | memory"
    return table(head, rows) + (
        f"\nMeasured on {where}; fp32, head size 64. Each file in kernels/results names its command; "
        "`scripts/bench_kernels.sh` has them all.\n"
    )


def headlines() -> str:
    rows = []
    for record in kernel_records(set(HEADLINES)):
        heads, method = HEADLINES[record["file"]]
        for one in record["results"]:
            if one["method"] == method:
                row = kernel_row(record, one)
                rows.append([row[1], heads, *row[4:6], *row[6:10]])
    return (
        "**One attention layer, whole sequence**, K = 8, k = 1, window 128, over full FlashAttention, same engine "
        "(the faster of its two forms; short lengths lose); `bash scripts/bench_kernels.sh`. Every method and its "
        "command: [kernels/README.md](kernels/README.md#speed).\n\n"
        + table("tokens | heads | density | bound | speedup | over one call | efficiency | memory", rows)
    )


def strongest(one: dict[str, Any]) -> dict[str, Any]:
    """The fastest way found to read a full cache at this length."""
    (best,) = (full for full in one["full"] if full["strongest"])
    return best


def decoding() -> str:
    record = json.loads((KERNELS / "decode.json").read_text())
    head = "context | full ms | with torch.cat | Focus ms | MB read | by Focus | bound | speedup | efficiency | cache"
    rows = [
        [
            tokens(one["tokens"]),
            *(f"{ms:.1f}" for ms in (strongest(one)["step_ms"], one["cat_step_ms"], one["focus_step_ms"])),
            *(f"{one[name] / 1e6:.0f}" for name in ("full_bytes_read", "focus_bytes_read")),
            *(number(one[name]) for name in ("pair_bound", "speedup", "efficiency", "cache_ratio")),
        ]
        for one in record["results"]
    ]
    return (
        "**Decoding**, attention of 30 layers, 9/3 heads of 64 (SmolLM2-135M), K = 8, k = 1, ms per token "
        f"(`{' '.join(record['command'])}`). *Full* is the fastest of seven ways to read a full cache, written to in "
        "place; *with torch.cat* is one that grows as transformers' does. *Cache* is memory over the full cache's.\n\n"
        + table(head, rows)
    )
