"""Writes the README's table of kernel speeds from kernels/results/*.json; --check only says whether it is current."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- kernel results: scripts/results_table.py -->", "<!-- end of kernel results -->"
FIRST = ("k8-k1", "long")
HEAD = (
    "| layer | tokens | method | ms | density | bound | speedup | over one call | efficiency | memory |\n"
    "|---|---|---|---|---|---|---|---|---|---|\n"
)


def tokens(count: int) -> str:
    return f"{count >> 20}M" if count >= 1 << 20 else f"{count >> 10}K"


def row(record: dict[str, Any], result: dict[str, Any]) -> str:
    layer = record["layer"]
    shape = f"K={layer['num_groups']} k={layer['top_k']} {layer['match']}, heads {layer['q_heads']}/{layer['kv_heads']}"
    if "--backward" in record["command"]:
        shape += ", forward + backward"

    def number(key: str, form: str) -> str:
        return "-" if result[key] is None else format(result[key], form)

    cells = [
        shape,
        tokens(result["tokens"]),
        result["method"] + (" (sampled)" if result["sampled"] else ""),
        f"{result['seconds'] * 1e3:.1f}" if result["seconds"] < 1 else f"{result['seconds'] * 1e3:.0f}",
        f"{result['density']:.1%}",
        f"{result['pair_bound']:.2f}",
        f"{result['speedup']:.2f}",
        number("speedup_over_one_call", ".2f"),
        f"{result['efficiency']:.2f}",
        number("memory_ratio", ".2f"),
    ]
    return "| " + " | ".join(cells) + " |\n"


def table() -> str:
    lines = [HEAD]
    machines = set()
    for path in sorted((ROOT / "kernels" / "results").glob("*.json"), key=lambda path: (path.stem not in FIRST, path)):
        record = json.loads(path.read_text())
        if record["schema"] != 1:  # of decoding: another table
            continue
        m = record["machine"]
        machines.add(f"{m['cpu']}, {m['threads']} threads, {m['capability']}, torch {m['torch']}")
        lines += [row(record, r) for r in record["results"] if not r["method"].startswith("full")]
    where = " and ".join(sorted(machines))
    lines.append(f"\nMeasured on {where}; fp32, head size 64. ")
    lines.append("Each file in kernels/results names its command; `scripts/bench_kernels.sh` has them all.\n")
    return "".join(lines)


def main() -> int:
    path = ROOT / "README.md"
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n{table()}{END}{after}"
    if "--check" in sys.argv:
        return int(wanted != path.read_text())
    path.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
