"""Heads spread over ranks by tensor parallelism: each rank attends with its own, routers are the same everywhere.

What a router's scores get back from attention is then a part, that of a rank's heads; the sum is what they are owed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def head_group(module: nn.Module) -> Any:
    """The process group that an attention module's heads are spread over; None if it has all of them."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    from torch.distributed.tensor import DTensor, Shard

    for parameter in module.parameters():
        names = parameter.device_mesh.mesh_dim_names or () if isinstance(parameter, DTensor) else ()
        if isinstance(parameter, DTensor) and "tp" in names:
            place = names.index("tp")
            if isinstance(parameter.placements[place], Shard):
                return parameter.device_mesh.get_group(place)
    return None


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def of_heads_here(x: Any, heads: int, module: Any) -> Any:
    """What is said of each query head [Hq], of those that are on this process. Numbers and None pass through."""
    if not isinstance(x, Tensor) or x.numel() in (1, heads):
        return x
    return x.narrow(0, dist.get_rank(head_group(module)) * heads, heads)


def sum_gradients(x: Any, group: Any) -> Any:
    """x as it is; its gradient is summed over the group. Numbers and None pass through."""
    learns = isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()
    return _SumGradients.apply(x, group) if learns and group is not None else x
