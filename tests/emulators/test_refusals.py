"""Every argument that the real functions refuse, or silently corrupt, raises in the emulators."""

from typing import Any

import pytest
import torch
from torch import Tensor

from . import flash_attn2, flash_attn3, torch_varlen
from .reference import BACKENDS, offsets, packed

FORWARD = {
    "fa2": flash_attn2.flash_attn_varlen_func,
    "fa3": flash_attn3.flash_attn_varlen_func,
    "torch": torch_varlen.varlen_attn,
}
ERRORS = (TypeError, RuntimeError, ValueError)
Q, K, V, CU_Q, CU_K, MAX_Q, MAX_K = range(7)


def arguments(**shape: int) -> list[Any]:
    return [*packed((3, 2), (4, 2), **shape), offsets((3, 2)), offsets((4, 2)), 3, 4]


def forward(backend: str, args: list[Any], **options: Any) -> Any:
    if backend == "torch":
        options.setdefault("enable_gqa", True)
    return FORWARD[backend](*args, **options)


def strided(x: Tensor) -> Tensor:
    return torch.cat([x, x], dim=-1)[..., ::2]


def misaligned(x: Tensor) -> Tensor:
    return torch.cat([x, x], dim=-1)[..., 4 : 4 + x.shape[-1]]


CHANGES: dict[str, tuple[int, Any]] = {
    "float32 values": (Q, lambda x: x.float()),
    "mixed dtypes": (K, lambda x: x.bfloat16()),
    "padded layout": (Q, lambda x: x[None]),
    "misaligned rows": (Q, misaligned),
    "key head size": (K, lambda x: x[..., :8].contiguous()),
    "key heads": (K, lambda x: x[:, :1].expand(-1, 3, -1).contiguous()),
    "value rows": (V, lambda x: x[:-1]),
    "int64 offsets": (CU_Q, lambda x: x.long()),
    "offsets in two dimensions": (CU_K, lambda x: x[None]),
    "other batch": (CU_K, lambda x: x[:2]),
    "no segments": (CU_Q, lambda x: x[:1]),
    "decreasing offsets": (CU_Q, lambda x: torch.tensor([0, 3, 2], dtype=torch.int32)),
    "negative offsets": (CU_K, lambda x: x - 1),
    "offsets past the rows": (CU_K, lambda x: x + torch.tensor([0, 0, 1], dtype=torch.int32)),
    "short max_seqlen_q": (MAX_Q, lambda x: 2),
    "short max_seqlen_k": (MAX_K, lambda x: 3),
    "tensor max_seqlen": (MAX_K, torch.tensor),
    "float max_seqlen": (MAX_Q, float),
    "missing offsets": (CU_K, lambda x: None),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("change", CHANGES)
def test_forward_refuses(backend, change):
    args = arguments()
    forward(backend, args)
    index, edit = CHANGES[change]
    args[index] = edit(args[index])
    with pytest.raises((*ERRORS, NotImplementedError)):
        forward(backend, args)


@pytest.mark.parametrize("backend", BACKENDS)
def test_head_sizes(backend):
    with pytest.raises(ERRORS):
        forward(backend, arguments(size=264))
    if backend != "fa2":
        with pytest.raises(ERRORS):
            forward(backend, arguments(size=12))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options", [{"unknown": 1}, {"window_size": (1,)}, {"window_size": (1.0, 0)}, {"page_table": 1}]
)
def test_options(backend, options):
    with pytest.raises(ERRORS):
        forward(backend, arguments(), **options)


def test_argument_lists_are_exact():
    with pytest.raises(TypeError):
        forward("torch", [*arguments(), None])
    with pytest.raises(TypeError):
        forward("fa2", arguments(), seqused_k=torch.tensor([1, 1], dtype=torch.int32))
    with pytest.raises(TypeError):
        forward("fa3", arguments(), block_table=None)
    for options in ({"dropout_p": 0.1}, {"alibi_slopes": torch.ones(4)}):
        with pytest.raises(NotImplementedError):
            forward("fa2", arguments(), **options)


def test_only_torch_leaves_strided_inputs_to_the_caller():
    args = arguments()
    args[Q] = strided(args[Q])
    for backend in ("fa2", "fa3"):
        forward(backend, args)
    with pytest.raises(RuntimeError):
        forward("torch", args)


@pytest.mark.parametrize("backend", ["fa2", "torch"])
def test_fa2_limits(backend):
    args = arguments()
    args[CU_Q] = torch.tensor([1, 3, 5], dtype=torch.int32)
    with pytest.raises(ValueError, match="start at 0"):
        forward(backend, args)
    args[CU_Q] = torch.tensor([0, 9, 3, 9, 5], dtype=torch.int32)[::2]
    with pytest.raises(RuntimeError, match="contiguous"):
        forward(backend, args)
    forward("fa3", args)
    grouped = [*packed((1, 0), (4, 2)), offsets((1, 0)), offsets((4, 2)), 1, 4]
    with pytest.raises(RuntimeError, match="one token per segment"):
        forward(backend, grouped)
    none = [*packed((0, 0), (4, 2)), offsets((0, 0)), offsets((4, 2)), 0, 4]
    with pytest.raises(RuntimeError, match="invalid configuration"):
        forward(backend, none)


def test_value_head_size():
    args = arguments()
    args[V] = torch.randn(6, 2, 24).half()
    for backend in ("fa2", "torch"):
        with pytest.raises(RuntimeError):
            forward(backend, args)
    forward("fa3", args)
    wide = arguments(size=72)
    wide[V] = torch.randn(6, 2, 64).half()
    with pytest.raises(RuntimeError):
        forward("fa3", wide)


@pytest.mark.parametrize("backend", ["fa2", "torch"])
def test_paging(backend):
    q, _, _, cu_q, cu_k, max_q, max_k = arguments()
    pool = torch.randn(3, 256, 2, 16).half()
    table = torch.tensor([[0], [2]], dtype=torch.int32)
    used = {"seqused_k": torch.tensor([4, 2], dtype=torch.int32)} if backend == "torch" else {}

    def run(pool: Tensor, table: Tensor, q: Tensor = q) -> Any:
        return forward(backend, [q, pool, pool, cu_q, cu_k, max_q, max_k], block_table=table, **used)

    run(pool, table)
    for bad_pool, bad_table in (
        (pool[:, :128].contiguous(), table),
        (pool, table.long()),
        (pool, table[:1]),
        (pool, table + 1),
        (pool, table[:, :0]),
        (pool[0], table),
    ):
        with pytest.raises(ERRORS):
            run(bad_pool, bad_table)
    with pytest.raises(RuntimeError):
        run(pool, table, q.clone().requires_grad_()).sum().backward()


def test_torch_heads_and_inference_only_options():
    with pytest.raises(ValueError, match="enable_gqa"):
        forward("torch", arguments(), enable_gqa=False)
    args = arguments()
    used = torch.tensor([4, 2], dtype=torch.int32)
    forward("torch", args, seqused_k=used)
    args[Q].requires_grad_()
    with pytest.raises(RuntimeError, match="inference-only"):
        forward("torch", args, seqused_k=used)
    with torch.no_grad():
        forward("torch", args, seqused_k=used)


@pytest.mark.parametrize("used", [[5, 2], [4, 3], [-1, 2], [4]])
def test_fa3_seqused(used):
    with pytest.raises(ERRORS):
        forward("fa3", arguments(), seqused_k=torch.tensor(used, dtype=torch.int32))
    with pytest.raises(ERRORS):
        forward("fa3", arguments(), seqused_q=torch.tensor([3, 2]))
    with pytest.raises(ValueError, match="overlap"):
        args = arguments()
        args[MAX_Q] = 4
        forward("fa3", args, seqused_q=torch.tensor([4, 2], dtype=torch.int32))
