"""A base whose heads are spread over ranks by transformers (tensor parallel), beside the same on one process."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from focus_retrofit import FocusConfig, load_adapter, retrofit
from focus_retrofit.training import Objective
from tests.matrix import BY_NAME, VOCABULARY

CONFIG = FocusConfig(num_groups=4, top_k=2, window=8, sinks=2, temperature="heads")
FAMILIES = ("Llama", "Gemma2")


def largest(a, b):
    return float((a - b).abs().max())


def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def compare(family, rank, ranks, folder):
    place = folder / family
    alone = BY_NAME[family].make()
    ids = torch.randint(2, VOCABULARY, (2, 60), generator=torch.Generator().manual_seed(1))
    if rank == 0:
        alone.save_pretrained(place)
    alone = retrofit(alone, CONFIG)
    alone.focus.balance(ids)
    alone.focus.save_pretrained(place / "adapter")
    dist.barrier()
    config = DistributedConfig(tp_size=ranks, tp_plan="auto")
    options = {"dtype": torch.float64, "experts_implementation": "eager" if BY_NAME[family].mixture else None}
    base = AutoModelForCausalLM.from_pretrained(place, distributed_config=config, **options)
    spread = load_adapter(base, str(place / "adapter")).eval()
    found = {"sharded": sum(isinstance(p, DTensor) for p in base.parameters())}
    with torch.no_grad():
        want = alone(input_ids=ids, use_cache=False).logits
        found["error"] = largest(whole(spread(input_ids=ids, use_cache=False).logits), want)
        with alone.focus.disabled():
            found["sparse"] = largest(alone(input_ids=ids, use_cache=False).logits, want)
    new = {"max_new_tokens": 6, "do_sample": False}
    found["same text"] = torch.equal(spread.generate(ids, **new), alone.generate(ids, **new))
    batch = {"input_ids": ids, "labels": ids}
    for objective in ("lm-hard", "mass"):
        grads = []
        for model in (alone, spread):
            model.train()
            model.zero_grad()
            Objective(objective)(model, model.focus, batch, ids.numel() - 2).backward()
            grads.append({name: p.grad.clone() for name, p in model.focus.named_parameters() if p.grad is not None})
        assert grads[0].keys() == grads[1].keys()
        found[objective] = max(largest(grads[1][n], g) / max(float(g.abs().max()), 1e-9) for n, g in grads[0].items())
    return found


def main(rank: int, ranks: int, folder: Path) -> None:
    found = {}
    for family in FAMILIES:
        found[family] = compare(family, rank, ranks, folder)
        (folder / f"tensor-{rank}.json").write_text(json.dumps(found))
