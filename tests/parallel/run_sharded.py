"""A base whose weights are sharded over ranks (FSDP2), by hand and by transformers, beside the same on one process."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from focus_retrofit import FocusConfig, load_adapter, retrofit
from focus_retrofit.training import Objective
from focus_retrofit.training.trainer import share_gradients
from tests.matrix import BY_NAME, VOCABULARY

CONFIG = FocusConfig(num_groups=4, top_k=2, window=8, sinks=2, temperature="learned")


def by_hand(folder, ranks):
    """`fully_shard` around a retrofitted model; its routers stay whole."""
    model = load_adapter(BY_NAME["Llama"].make(), str(folder / "adapter"))
    mesh = dist.init_device_mesh("cpu", (ranks,))
    routers = set(model.focus.trainable_parameters())
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, ignored_params=routers)
    fully_shard(model, mesh=mesh, ignored_params=routers)
    return model


def by_transformers(folder, ranks):
    """A base that transformers sharded while loading it, then retrofitted."""
    config = DistributedConfig(fsdp_size=ranks)
    base = AutoModelForCausalLM.from_pretrained(folder / "base", distributed_config=config, dtype=torch.float64)
    return load_adapter(base, str(folder / "adapter"))


def step(model, ids, items):
    """One step of training on these rows."""
    model.train()
    optimizer = torch.optim.SGD(model.focus.trainable_parameters(), lr=0.1)
    Objective("lm-hard + mass")(model, model.focus, {"input_ids": ids, "labels": ids}, items).backward()
    optimizer.step()
    model.eval()


def compare(make, alone, ids, rank, ranks, folder):
    model = make(folder, ranks).eval()
    routers = {id(p) for p in model.focus.trainable_parameters()}
    found = {"sharded": all(isinstance(p, DTensor) for p in model.parameters() if id(p) not in routers)}
    new = {"max_new_tokens": 6, "do_sample": False}
    with torch.no_grad():
        found["error"] = float((model(input_ids=ids).logits - alone(input_ids=ids).logits).abs().max())
        found["same text"] = torch.equal(model.generate(ids, **new), alone.generate(ids, **new))
    share_gradients(model.focus.trainable_parameters())
    mine = ids[rank * len(ids) // ranks : (rank + 1) * len(ids) // ranks]
    step(model, mine, (ids.numel() - len(ids)) / ranks)
    saved = folder / make.__name__
    model.focus.save_pretrained(saved)
    dist.barrier()
    again = load_adapter(BY_NAME["Llama"].make(), str(saved)).focus.tensors()
    one = load_adapter(BY_NAME["Llama"].make(), str(folder / "adapter"))
    before = {name: x.clone() for name, x in one.focus.tensors().items()}
    step(one, ids, ids.numel() - len(ids))
    want = one.focus.tensors()
    found["moved"] = max(float((x - before[name]).abs().max()) for name, x in want.items())
    found["trained"] = max(float((again[name] - x).abs().max()) for name, x in want.items())
    return found


def main(rank: int, ranks: int, folder: Path) -> None:
    alone = BY_NAME["Llama"].make()
    ids = torch.randint(2, VOCABULARY, (4, 60), generator=torch.Generator().manual_seed(1))
    if rank == 0:
        alone.save_pretrained(folder / "base")
    alone = retrofit(alone, CONFIG)
    alone.focus.balance(ids)
    alone.focus.save_pretrained(folder / "adapter")
    dist.barrier()
    found = {make.__name__: compare(make, alone, ids, rank, ranks, folder) for make in (by_hand, by_transformers)}
    (folder / f"sharded-{rank}.json").write_text(json.dumps(found))
