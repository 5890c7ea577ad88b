"""The emulators equal a dense masked softmax, honour the given out and lse, and keep each library's conventions."""

import importlib
import inspect
import math

import pytest
import torch
import torch.nn.attention.varlen as varlen

from . import dense, flash_attn2, flash_attn3, torch_varlen
from .reference import BACKENDS, close, leaves, masked_softmax, offsets, packed, run_backward, run_forward

CASES = [((5, 0, 3), (7, 2, 3), (-1, -1)), ((4, 6), (4, 9), (-1, 0)), ((6, 3), (6, 5), (2, 0)), ((5,), (5,), (1, 2))]


@pytest.mark.parametrize(("backend", "softcap"), [*((b, 0.0) for b in BACKENDS), ("fa2", 2.0), ("fa3", 2.0)])
@pytest.mark.parametrize(("lens_q", "lens_k", "window"), CASES)
def test_forward_and_backward_match_autograd(backend, lens_q, lens_k, window, softcap):
    values = packed(lens_q, lens_k)
    wide = leaves(*values)
    expected = masked_softmax(*wide, lens_q, lens_k, window, softcap)
    tracked = [x.clone().requires_grad_() for x in values]
    out, lse = run_forward(backend, *tracked, lens_q, lens_k, window, softcap)
    assert out.dtype == torch.float16
    assert lse.dtype == torch.float32 and lse.shape == (4, sum(lens_q))
    close(out, expected)
    dout = torch.randn_like(out)
    expected_grads = torch.autograd.grad(expected, wide, dout.double())
    private = run_backward(backend, dout, *values, out.detach(), lse.detach(), lens_q, lens_k, window, softcap)
    public = torch.autograd.grad(out, tracked, dout)
    for grads in (private, public):
        for actual, want in zip(grads, expected_grads, strict=True):
            close(actual, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_merged_prefix_gives_the_joint_gradient(backend):
    """A prefix part and a causal part, merged by logsumexp, equal one causal softmax over both."""
    own, prefix = (5, 4, 3), (6, 0, 2)
    joint_lens = [a + b for a, b in zip(prefix, own, strict=True)]
    q, k, v = packed(own, joint_lens)
    wide = leaves(q, k, v)
    joint = masked_softmax(*wide, own, joint_lens, (-1, 0))
    is_prefix = torch.cat([torch.arange(a + b) < a for a, b in zip(prefix, own, strict=True)])
    parts = [(is_prefix, prefix, (-1, -1)), (~is_prefix, own, (-1, 0))]
    runs = [run_forward(backend, q, k[rows], v[rows], own, lens, window) for rows, lens, window in parts]
    lses = torch.stack([lse.masked_fill(lse.isinf(), -math.inf) for _, lse in runs])
    merged_lse = torch.logsumexp(lses, dim=0)
    weights = torch.exp(lses - merged_lse)
    merged = sum(w.T[..., None] * out for w, (out, _) in zip(weights, runs, strict=True)).half()
    close(merged, joint)
    dout = torch.randn_like(q)
    want_q, want_k, want_v = torch.autograd.grad(joint, wide, dout.double())
    got_q = torch.zeros_like(q)
    for rows, lens, window in parts:
        dq, dk, dv = run_backward(backend, dout, q, k[rows], v[rows], merged, merged_lse, own, lens, window)
        got_q += dq
        close(dk, want_k[rows])
        close(dv, want_v[rows])
    close(got_q, want_q)


def test_dense_merge_of_key_halves_is_exact():
    q, k, v = leaves(*packed((6,), (10,)))
    out, lse = dense.segment_forward(q, k, v, scale=0.25, softcap=3.0)
    dout = torch.randn_like(out)
    want = torch.autograd.grad(out, (q, k, v), dout)
    fixed = {"scale": 0.25, "softcap": 3.0}
    whole = dense.segment_backward(dout, q, k, v, out, lse, **fixed)
    halves = [dense.segment_backward(dout, q, k[s], v[s], out, lse, **fixed) for s in (slice(0, 4), slice(4, 10))]
    split = (halves[0][0] + halves[1][0], torch.cat([h[1] for h in halves]), torch.cat([h[2] for h in halves]))
    torch.testing.assert_close(whole, want)
    torch.testing.assert_close(split, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16(backend):
    q, k, v = (x.bfloat16() for x in packed((3, 2), (4, 2)))
    out, lse = run_forward(backend, q, k, v, (3, 2), (4, 2), (-1, 0))
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    close(out, masked_softmax(*leaves(q, k, v), (3, 2), (4, 2), (-1, 0)), atol=2e-2)


def test_torch_signatures_equal_the_installed_ones():
    pairs = [
        (varlen.varlen_attn, torch_varlen.varlen_attn),
        (varlen._varlen_attn._init_fn, torch_varlen._varlen_attn),
        (varlen._varlen_attn_backward._init_fn, torch_varlen._varlen_attn_backward),
    ]
    for installed, emulated in pairs:
        shapes = [
            [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]
            for function in (installed, emulated)
        ]
        assert shapes[0] == shapes[1]


def test_installed_modules_record_their_calls(monkeypatch):
    for emulator in (flash_attn2, flash_attn3, torch_varlen):
        emulator.install(monkeypatch)
        assert emulator.calls == []
    package = importlib.import_module("flash_attn")
    interface = importlib.import_module("flash_attn.flash_attn_interface")
    hopper = importlib.import_module("flash_attn_interface")
    assert package.__version__ == "2.8.3" and importlib.util.find_spec("flash_attn") is not None
    assert interface._flash_attn_varlen_backward is flash_attn2._flash_attn_varlen_backward
    assert torch.ops.torch_attn._varlen_attn_backward is varlen._varlen_attn_backward
    q, k, v = (x.requires_grad_() for x in packed((2, 1), (2, 1), kv_heads=4))
    sizes = (offsets((2, 1)), offsets((2, 1)), 2, 2)
    for function in (package.flash_attn_varlen_func, hopper.flash_attn_varlen_func, varlen.varlen_attn):
        function(q, k, v, *sizes).sum().backward()
    for emulator in (flash_attn2, flash_attn3, torch_varlen):
        assert [call.args["segments"] for call in emulator.calls] == [[(2, 2), (1, 1)]] * 2
        assert "backward" in emulator.calls[1].name


def test_fa3_older_backward_returns_the_gradients(monkeypatch):
    flash_attn3.install(monkeypatch, v283_backward=True)
    q, k, v = packed((3,), (3,))
    out, lse = run_forward("fa3", q, k, v, (3,), (3,))
    sizes = (offsets((3,)), offsets((3,)), None, None, 3, 3)
    buffers = [torch.empty_like(x) for x in (q, k, v)]
    backward = importlib.import_module("flash_attn_interface")._flash_attn_backward
    grads = backward(q, q, k, v, out, lse, *sizes, *buffers, 0.25, False, window_size=(-1, -1))[:3]
    torch.testing.assert_close(grads, run_backward("fa3", q, q, k, v, out, lse, (3,), (3,)))
