"""Gradients of the routers beside a base that FSDP2 shards over processes, as a process of `torchrun`.

torchrun --nproc-per-node N -m tests.training.run_sharded OUTPUT OBJECTIVE
"""

from __future__ import annotations

import sys

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from focus_retrofit.training import Objective
from focus_retrofit.training.trainer import share_gradients

from .tiny import leave, model, windows


def gradients(objective: str, rank: int = 0, ranks: int = 1) -> dict[str, Tensor]:
    """Of the routers, and their potentials, after this process's share of four windows."""
    retrofitted = model().train()
    routers = set(retrofitted.focus.trainable_parameters())
    if ranks > 1:
        mesh = torch.distributed.init_device_mesh("cpu", (ranks,))
        for layer in retrofitted.model.layers:
            fully_shard(layer, mesh=mesh, ignored_params=routers)
        fully_shard(retrofitted, mesh=mesh, ignored_params=routers)
        share_gradients(list(routers))
        base = [p for p in retrofitted.parameters() if p not in routers]
        assert isinstance(retrofitted, FSDPModule)
        assert all(isinstance(p, DTensor) for p in base)
    data = windows()
    mine = [data[n] for n in range(4)][rank * 4 // ranks : (rank + 1) * 4 // ranks]
    batch = {name: torch.stack([example[name] for example in mine]) for name in ("input_ids", "labels")}
    items = 4 * (batch["input_ids"].shape[1] - 1) / ranks
    Objective(objective)(retrofitted, retrofitted.focus, batch, items).backward()
    found = {name: p.grad for name, p in retrofitted.focus.named_parameters() if p.grad is not None}
    return found | dict(retrofitted.focus.named_buffers())


def main() -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    found = gradients(sys.argv[2], rank, torch.distributed.get_world_size())
    if rank == 0:
        save_file({name: x.contiguous().clone() for name, x in found.items()}, sys.argv[1])
    leave()


if __name__ == "__main__":
    main()
