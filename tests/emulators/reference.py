"""An independent masked softmax over packed segments, and one calling convention for the three emulators."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention.varlen import AuxRequest

from . import flash_attn2, flash_attn3, torch_varlen

BACKENDS = ("fa2", "fa3", "torch")
Grads = tuple[Tensor, Tensor, Tensor]


def offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def packed(lens_q: Sequence[int], lens_k: Sequence[int], heads: int = 4, kv_heads: int = 2, size: int = 16) -> Grads:
    torch.manual_seed(sum(lens_q) + 31 * sum(lens_k))
    q = torch.randn(sum(lens_q), heads, size).half()
    k, v = (torch.randn(sum(lens_k), kv_heads, size).half() for _ in range(2))
    return q, k, v


def close(actual: Tensor, expected: Tensor, atol: float = 4e-3) -> None:
    torch.testing.assert_close(actual.double(), expected.detach().double(), atol=atol, rtol=4e-3)


def leaves(*values: Tensor) -> list[Tensor]:
    return [x.detach().double().requires_grad_() for x in values]


def masked_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lens_q: Sequence[int],
    lens_k: Sequence[int],
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> Tensor:
    """Differentiable output [total_q, heads, size]; a row without visible keys is zero."""
    outs = []
    group = q.shape[1] // k.shape[1]
    parts = zip(*(torch.split(x, list(n)) for x, n in ((q, lens_q), (k, lens_k), (v, lens_k))), strict=True)
    for part_q, part_k, part_v in parts:
        shift = len(part_k) - len(part_q)
        bias = torch.zeros(len(part_q), len(part_k), dtype=q.dtype)
        for i in range(len(part_q)):
            for j in range(len(part_k)):
                behind = window[0] >= 0 and j < i + shift - window[0]
                ahead = window[1] >= 0 and j > i + shift + window[1]
                bias[i, j] = -torch.inf if behind or ahead else 0.0
        heads = []
        for head in range(q.shape[1]):
            score = part_q[:, head] @ part_k[:, head // group].T * q.shape[-1] ** -0.5
            score = softcap * torch.tanh(score / softcap) if softcap else score
            weight = torch.where(torch.isinf(bias), 0.0, torch.exp(score))
            total = weight.sum(-1, keepdim=True)
            heads.append(weight / torch.where(total == 0, 1.0, total) @ part_v[:, head // group])
        outs.append(torch.stack(heads, dim=1))
    return torch.cat(outs)


def run_forward(
    backend: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lens_q: Sequence[int],
    lens_k: Sequence[int],
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    sizes = (offsets(lens_q), offsets(lens_k), max(lens_q), max(lens_k))
    if backend == "torch":
        aux = AuxRequest(lse=True)
        out, lse = torch_varlen.varlen_attn(q, k, v, *sizes, return_aux=aux, window_size=window, enable_gqa=True)
        return out, lse
    module = flash_attn2 if backend == "fa2" else flash_attn3
    options = {"causal": window == (-1, 0), "window_size": (-1, -1) if window == (-1, 0) else window}
    results = module.flash_attn_varlen_func(q, k, v, *sizes, softcap=softcap, return_attn_probs=True, **options)
    return results[0], results[1]


def run_backward(
    backend: str,
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    lens_q: Sequence[int],
    lens_k: Sequence[int],
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> Grads:
    cu_q, cu_k, max_q, max_k = offsets(lens_q), offsets(lens_k), max(lens_q), max(lens_k)
    causal, scale = window == (-1, 0), q.shape[-1] ** -0.5
    if backend == "torch":
        state = torch.zeros(2, dtype=torch.uint64)
        sizes = (cu_q, cu_k, max_q, max_k, causal, state)
        return torch_varlen._varlen_attn_backward(dout, q, k, v, out, lse, *sizes, scale, list(window))
    dq, dk, dv = (torch.full_like(x, 7.0) for x in (q, k, v))
    tail = (scale, causal, window[0], window[1], softcap)
    if backend == "fa2":
        sizes2 = (cu_q, cu_k, max_q, max_k, 0.0)
        flash_attn2._flash_attn_varlen_backward(dout, q, k, v, out, lse, dq, dk, dv, *sizes2, *tail, None, False)
    else:
        sizes3 = (cu_q, cu_k, None, None, max_q, max_k)
        flash_attn3._flash_attn_backward(dout, q, k, v, out, lse, *sizes3, dq, dk, dv, *tail)
    return dq, dk, dv
