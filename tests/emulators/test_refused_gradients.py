"""Backward entry points refuse buffers, shapes and ranges that the real kernels would refuse or corrupt."""

from typing import Any

import pytest
import torch

from . import flash_attn2, flash_attn3, torch_varlen
from .reference import BACKENDS, offsets, packed, run_forward

ERRORS = (TypeError, RuntimeError, ValueError)


def arguments(backend: str, lens_q: tuple[int, ...] = (3, 2), size: int = 16) -> dict[str, Any]:
    lens_k = (4, 2)
    q, k, v = packed(lens_q, lens_k, size=size)
    out, lse = run_forward(backend, q, k, v, lens_q, lens_k)
    values = {"q": q, "k": k, "v": v, "out": out, "dout": torch.ones_like(out), "softmax_lse": lse}
    sizes = {"cu_seqlens_q": offsets(lens_q), "cu_seqlens_k": offsets(lens_k), "max_seqlen_q": 3, "max_seqlen_k": 4}
    buffers = {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
    if backend == "torch":
        names = {"dout": "grad_out", "q": "query", "k": "key", "v": "value", "softmax_lse": "lse"}
        renamed = {names.get(name, name): x for name, x in values.items()}
        lengths = {name.replace("seqlens", "seq").replace("_seqlen", ""): x for name, x in sizes.items()}
        return {**renamed, **lengths, "is_causal": False, "rng_state": torch.zeros(2, dtype=torch.uint64)}
    common = {**values, **sizes, **buffers, "softmax_scale": 0.25, "softcap": 0.0}
    windows = {"window_size_left": -1, "window_size_right": -1, "deterministic": False}
    if backend == "fa3":
        return {**common, **windows, "is_causal": False}
    return {**common, **windows, "causal": False, "dropout_p": 0.0, "alibi_slopes": None}


def backward(backend: str, values: dict[str, Any]) -> Any:
    functions = {
        "fa2": flash_attn2._flash_attn_varlen_backward,
        "fa3": flash_attn3._flash_attn_backward,
        "torch": torch_varlen._varlen_attn_backward,
    }
    return functions[backend](**values)


LSE_CHANGES = {
    "half lse": lambda x: x.half(),
    "transposed lse": lambda x: x.T.contiguous(),
    "strided lse": lambda x: x.T.contiguous().T,
    "padded lse": lambda x: torch.cat([x, x], dim=1),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("change", LSE_CHANGES)
def test_lse_layout(backend, change):
    values = arguments(backend)
    backward(backend, values)
    name = "lse" if backend == "torch" else "softmax_lse"
    values[name] = LSE_CHANGES[change](values[name])
    with pytest.raises(RuntimeError):
        backward(backend, values)


@pytest.mark.parametrize("backend", ["fa2", "fa3"])
@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_gradient_buffers(backend, name):
    good = arguments(backend)[name]
    expanded = torch.empty(good.shape[0], 4, 16).half() if name != "dq" else torch.empty(5, 2, 16).half()
    strided = torch.empty(*good.shape[:2], 32).half()[..., ::2]
    for bad in (None, good.float(), good[1:], expanded, strided):
        with pytest.raises(ERRORS):
            backward(backend, arguments(backend) | {name: bad})


@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes_and_types(backend):
    prefix = {"torch": "max_q"}.get(backend, "max_seqlen_q")
    dout = "grad_out" if backend == "torch" else "dout"
    fresh = arguments(backend)
    for change in ({prefix: 2}, {prefix: 3.0}, {dout: fresh[dout][1:]}, {"out": fresh["out"].float()}, {"extra": 1}):
        with pytest.raises(ERRORS):
            backward(backend, arguments(backend) | change)


def test_required_arguments_of_fa2():
    for name in ("causal", "window_size_left", "softcap", "alibi_slopes", "deterministic", "dropout_p"):
        values = arguments("fa2")
        del values[name]
        with pytest.raises(TypeError):
            backward("fa2", values)
    with pytest.raises(TypeError):
        backward("fa2", arguments("fa2") | {"softmax_scale": None})
    with pytest.raises(TypeError):
        backward("fa2", arguments("fa2") | {"block_table": None})


def test_private_backward_does_not_pad():
    with pytest.raises(RuntimeError, match="multiple of 8"):
        backward("fa2", arguments("fa2", size=12))


def test_no_key_length_needs_determinism_in_fa2():
    q, k, v = packed((2,), (0,))
    out, lse = run_forward("fa2", q, k, v, (2,), (0,))
    sizes = {"cu_seqlens_q": offsets((2,)), "cu_seqlens_k": offsets((0,)), "max_seqlen_q": 2, "max_seqlen_k": 0}
    grads = {"dq": torch.ones_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
    values = arguments("fa2") | {"q": q, "k": k, "v": v, "out": out, "dout": q, "softmax_lse": lse, **sizes, **grads}
    with pytest.raises(RuntimeError, match="invalid configuration"):
        backward("fa2", values)
    backward("fa2", values | {"deterministic": True})
    assert (grads["dq"] == 0).all()


def test_zero_tensors_clears_uncovered_rows():
    values = arguments("fa2") | {"cu_seqlens_q": offsets((3,)), "cu_seqlens_k": offsets((4,))}
    backward("fa2", values | {"zero_tensors": True})
    assert (values["dq"][3:] == 0).all() and (values["dk"][4:] == 0).all() and (values["dv"][4:] == 0).all()


def test_fa3_overlapping_keys_and_wide_heads():
    overlap = {"sequed_k": torch.tensor([4, 2], dtype=torch.int32), "cu_seqlens_k": torch.tensor([0, 3, 6]).int()}
    with pytest.raises(ValueError, match="overlap"):
        backward("fa3", arguments("fa3") | overlap)
    with pytest.raises(RuntimeError, match="deterministic"):
        backward("fa3", arguments("fa3", size=256) | {"deterministic": True})
    backward("fa3", arguments("fa3", size=256))
