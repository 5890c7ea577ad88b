"""Bytes that a sequence-parallel prefill sends between real processes, beside the formula and ring attention's.

python scripts/parallel_traffic.py --ranks 2 4 --tokens 2048 --output results/parallel-traffic.json
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

from focus_kernels.files import write_atomically
from focus_retrofit import FocusConfig, retrofit
from focus_retrofit.parallel import expected_traffic, prefill_in_parallel

HEADS, KEY_HEADS, SIZE, WINDOW, SINKS = 8, 2, 16, 32, 4


def tiny_model(num_groups: int, top_k: int, ids: torch.Tensor) -> Any:
    """One layer, untrained, with groups balanced on the text."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=HEADS * SIZE,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=ids.shape[1],
    )
    focus = FocusConfig(num_groups=num_groups, top_k=top_k, window=WINDOW, sinks=SINKS)
    model = retrofit(LlamaForCausalLM(config).eval(), focus)
    model.focus.balance(ids)
    return model


def measure(rank: int, ranks: int, options: argparse.Namespace, output: Path) -> None:
    """One of the processes; the first writes the rows."""
    rows = []
    for num_groups, top_k in options.groups:
        ids = torch.randint(0, 256, (1, options.tokens), generator=torch.Generator().manual_seed(0))
        model = tiny_model(num_groups, top_k, ids)
        done = prefill_in_parallel(model, ids, keep_cache=False)
        everyone: list[Any] = [None] * ranks
        dist.all_gather_object(everyone, done.traffic.sent)
        shape = {"tokens": options.tokens, "ranks": ranks, "num_groups": num_groups, "top_k": top_k}
        given = {"heads": HEADS, "kv_heads": KEY_HEADS, "head_size": SIZE, "window": WINDOW, "sinks": SINKS}
        expected = expected_traffic(**shape, **given, bytes_per_number=4)
        sent = {kind: sum(one[kind] for one in everyone) for kind in everyone[0]}
        sent["total"] = sum(sent.values())
        rows.append({**shape, **given, "bytes_per_number": 4, "sent": sent, "expected": expected})
    if rank == 0:
        write_atomically(output, json.dumps(rows))


def run(ranks: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Forks, so that torch is loaded once."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child:
                children.append(child)
                continue
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
            measure(rank, ranks, options, Path(folder) / "rows.json")
            dist.barrier()
            os._exit(0)
        ends = [os.waitpid(child, 0)[1] for child in children]
        if any(ends):
            raise SystemExit("a process failed; its message is above")
        return json.loads((Path(folder) / "rows.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--output", type=Path, default=Path("results/parallel-traffic.json"))
    options = parser.parse_args()
    options.groups = [(4, 1), (4, 2), (8, 1)]  # K, k
    torch.set_num_threads(1)
    rows = [row for ranks in options.ranks for row in run(ranks, options)]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    command = (
        f"python scripts/parallel_traffic.py --ranks {' '.join(map(str, options.ranks))} --tokens {options.tokens}"
    )
    write_atomically(options.output, json.dumps({"command": command, "rows": rows}, indent=1) + "\n")
    for row in rows:
        shares = {kind: round(count / row["expected"]["ring"], 3) for kind, count in row["sent"].items()}
        print(f"{row['ranks']} ranks, K={row['num_groups']}, k={row['top_k']}, over ring attention: {shares}")


if __name__ == "__main__":
    main()
