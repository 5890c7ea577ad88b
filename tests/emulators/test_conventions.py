"""Conventions in which the three libraries differ: empty rows, windows, uncovered rows, paging, ranges."""

import math

import pytest
import torch

from . import flash_attn2, flash_attn3, torch_varlen
from .reference import BACKENDS, close, leaves, masked_softmax, offsets, packed, run_backward, run_forward

EMPTY = {"fa2": math.inf, "fa3": -math.inf, "torch": math.inf}


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_rows_are_zero_with_the_library_sign(backend):
    lens_q, lens_k = (4, 3), (2, 0)
    q, k, v = packed(lens_q, lens_k)
    out, lse = run_forward(backend, q, k, v, lens_q, lens_k, (-1, 0))
    empty = torch.tensor([True, True, False, False, True, True, True])
    assert (out[empty] == 0).all() and (lse[:, empty] == EMPTY[backend]).all()
    assert lse[:, ~empty].isfinite().all()
    grads = run_backward(backend, torch.ones_like(q), q, k, v, out, lse, lens_q, lens_k, (-1, 0))
    assert all(grad.isfinite().all() for grad in grads) and (grads[0][empty] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_key_rows_at_all_gives_plus_infinity(backend):
    q, k, v = packed((2, 1), (0, 0))
    out, lse = run_forward(backend, q, k, v, (2, 1), (0, 0))
    assert (out == 0).all() and (lse == math.inf).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_lse_is_dropped(backend):
    q, k, v = (x.requires_grad_() for x in packed((3,), (3,)))
    _, lse = run_forward(backend, q, k, v, (3,), (3,))
    for grad in torch.autograd.grad(lse.sum(), (q, k, v)):
        assert (grad == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_lse_of_minus_infinity_counts_as_zero(backend):
    q, k, v = packed((2,), (3,))
    out, lse = torch.zeros_like(q), torch.full((4, 2), -math.inf)
    dout = torch.randn_like(q)
    expected = run_backward(backend, dout, q, k, v, out, torch.zeros(4, 2), (2,), (3,))
    torch.testing.assert_close(run_backward(backend, dout, q, k, v, out, lse, (2,), (3,)), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_right_window_of_the_key_length_opens_up_in_fa2_only(backend):
    """With more queries than keys the documented window still hides keys; the older kernels drop it."""
    q, k, v = packed((6,), (3,))
    out, _ = run_forward(backend, q, k, v, (6,), (3,), (-1, 3))
    close(out, masked_softmax(*leaves(q, k, v), (6,), (3,), (-1, 3) if backend == "fa3" else (-1, -1)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_past_the_last_offset_are_not_computed(backend):
    q, k, v = packed((3, 2), (3, 2))
    out, lse = run_forward(backend, q, k, v, (3,), (3,))
    assert out[3:].isnan().all() and lse[:, 3:].isnan().all() and out[:3].isfinite().all()
    grads = run_backward(backend, torch.ones_like(q), q, k, v, out, lse, (3,), (3,))
    left = {"fa2": (7.0, math.nan), "fa3": (7.0, 7.0), "torch": (math.nan, math.nan)}[backend]
    for grad, value in zip(grads, (left[0], left[1], left[1]), strict=True):
        torch.testing.assert_close(grad[3:], torch.full_like(grad[3:], value), equal_nan=True)


def test_fa2_pads_head_sizes_in_the_public_function_only():
    q, k, v = (x.requires_grad_() for x in packed((3,), (4,), size=12))
    out, _ = run_forward("fa2", q, k, v, (3,), (4,))
    wide = leaves(q, k, v)
    close(out, masked_softmax(*wide, (3,), (4,)))
    assert [g.shape for g in torch.autograd.grad(out.sum(), (q, k, v))] == [x.shape for x in (q, k, v)]


@pytest.mark.parametrize("backend", ["fa2", "torch"])
def test_paged_keys_equal_packed_keys(backend):
    lens_q, lens_k = (3, 2), (300, 40)
    q, k, v = packed(lens_q, lens_k)
    pool_k, pool_v = (torch.full((4, 256, 2, 16), math.nan).half() for _ in range(2))
    table = torch.tensor([[2, 0], [3, -9]], dtype=torch.int32)
    for pool, x in ((pool_k, k), (pool_v, v)):
        pool[2], pool[0, :44], pool[3, :40] = x[:256], x[256:300], x[300:]
    sizes = (offsets(lens_q), offsets(lens_k), 3, 300)
    if backend == "fa2":
        out = flash_attn2.flash_attn_varlen_func(q, pool_k, pool_v, *sizes, causal=True, block_table=table)
    else:
        used = torch.tensor(lens_k, dtype=torch.int32)
        cache = {"seqused_k": used, "block_table": table, "enable_gqa": True, "window_size": (-1, 0)}
        out = torch_varlen.varlen_attn(q, pool_k, pool_v, *sizes, **cache)
    close(out, run_forward(backend, q, k, v, lens_q, lens_k, (-1, 0))[0], atol=0.0)


def test_fa3_seqused_takes_overlapping_key_ranges():
    q, k, v = packed((3, 3), (8,))
    starts, used = torch.tensor([0, 2, 8], dtype=torch.int32), torch.tensor([5, 6], dtype=torch.int32)
    out = flash_attn3.flash_attn_varlen_func(q, k, v, offsets((3, 3)), starts, 3, 6, seqused_k=used)
    twice = torch.cat([torch.arange(0, 5), torch.arange(2, 8)])
    close(out, masked_softmax(*leaves(q, k[twice], v[twice]), (3, 3), (5, 6)))
    assert flash_attn3.calls[-1].args["starts"] == [(0, 0), (3, 2)]


def test_fa3_value_head_size_may_differ():
    q, k, _ = packed((3,), (4,))
    v = torch.randn(4, 2, 40).half().requires_grad_()
    out = flash_attn3.flash_attn_varlen_func(q, k, v, offsets((3,)), offsets((4,)), 3, 4)
    close(out, masked_softmax(*leaves(q, k, v), (3,), (4,)))
    assert torch.autograd.grad(out.sum(), v)[0].shape == v.shape
