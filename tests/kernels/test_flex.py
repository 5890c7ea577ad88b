"""FlexAttention against the dense contract. It compiles for seconds per variant, so the cases share their shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from focus_kernels import BackendError, focus_attention
from focus_kernels.backends import flex
from focus_kernels.call import Call

from .cases import Case

MISSING = flex.unavailable() or flex._no_cpu_kernel()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"flex: {MISSING}")

SHARED: dict[str, Any] = {"batch": 2, "heads": (4, 2), "size": 16, "value_size": 24}
PLAIN: dict[str, dict[str, Any]] = {
    "one group": {"tokens": 131},
    "one token": {"tokens": 1},
    "a block": {"tokens": 16},
    "window covers all": {"tokens": 40, "window": 39},
    "window 0, no sinks": {"tokens": 300, "window": 0, "sinks": 0},
    "group everything": {"tokens": 150, "groups": "one"},
    "probe 2": {"tokens": 200, "top_k": 2},
    "probe 3, documents": {"tokens": 200, "top_k": 3, "documents": 3},
    "share": {"tokens": 200, "top_k": 2, "match": "share"},
    "share all": {"tokens": 90, "top_k": 4, "match": "share"},
    "left padding": {"padding": "left"},
    "ragged documents": {"tokens": 170, "padding": "ragged", "documents": 2},
    "learned sinks": {"learned_sinks": True, "padding": "right"},
    "full blocks": {"tokens": 600, "num_groups": 2, "window": 4},
}
COMPILED_ANEW: dict[str, dict[str, Any]] = {
    "many groups, probe": {"num_groups": 70, "top_k": 3, "tokens": 200},
    "many groups, share": {"num_groups": 70, "top_k": 20, "tokens": 200, "match": "share"},
    "temperature": {"temperature": 0.5, "top_k": 2},
    "temperature per head": {"temperature": "heads", "documents": 2},
    "temperature everywhere": {"temperature": 0.5, "temperature_scope": "all"},
    "softcap": {"softcap": 4.0, "temperature": "heads", "learned_sinks": True, "padding": "ragged"},
}


def compare(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    """The kernel's exp has about 20 good bits, so the yardstick is a fixed error instead of dense attention's."""
    out, lse = case.focus("flex", dtype)
    want, want_lse = case.reference(dtype)
    real = case.mask[:, None].expand_as(want_lse)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    assert (out[~real] == 0).all()
    assert (lse[~real] == -float("inf")).all()
    torch.testing.assert_close(out.double(), want, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double()[real], want_lse[real], atol=1e-5, rtol=1e-5)


def recorded(case: Case, monkeypatch: pytest.MonkeyPatch) -> Call:
    """The call as the backend would get it."""
    calls: list[Call] = []

    def record(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(call)
        return call.query, call.query

    monkeypatch.setattr(flex, "run", record)
    case.focus("flex", torch.float32)
    return calls[0]


@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN.keys())
def test_contract(options: dict[str, Any]) -> None:
    compare(Case(**SHARED, **options), torch.float32, 1e-5)


@pytest.mark.parametrize("options", COMPILED_ANEW.values(), ids=COMPILED_ANEW.keys())
def test_contract_of_other_kernels(options: dict[str, Any]) -> None:
    compare(Case(**SHARED, **options), torch.float32, 1e-5)


def test_half_precision() -> None:
    compare(Case(**SHARED, tokens=200, documents=2), torch.bfloat16, 2e-2)


def test_what_depends_on_the_call_compiles_nothing() -> None:
    """Length, batch, padding, documents, window, sinks, match rule and k are data to the kernel."""
    Case(**SHARED).focus("flex", torch.float32)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for options in PLAIN.values():
        Case(**{**SHARED, **options, "batch": 1}).focus("flex", torch.float32)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
    assert len(flex._hold(torch.arange(flex.ROOM + 1))) == 2 * flex.ROOM


def test_without_lse(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(**SHARED)
    out, _ = case.focus("flex", torch.float32)
    run = flex.run
    call = recorded(case, monkeypatch)
    assert torch.equal(run(replace(call, want_lse=False))[0], out)


@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN.keys())
def test_block_tables_are_safe(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No visible pair lies outside the blocks, and a full block hides none."""
    call = recorded(Case(**SHARED, **options), monkeypatch)
    order = flex.sort_tokens(call)
    some, full = flex.block_tables(order, call.problem)
    token = torch.arange(len(order.index))
    seen = flex._mods(order, call.problem, 4)[0](token, token, token[:, None], token)
    pairs = seen.view(len(some), order.block, len(some), order.block)
    assert not (pairs.any(3).any(1) & ~some).any()
    assert not (full & ~pairs.all(3).all(1)).any()
    assert not (full & ~some).any()


def test_block_mask_is_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting by group leaves a fraction of the blocks, less than the half of plain causal attention."""
    call = recorded(Case(tokens=4096, window=16, num_groups=8, heads=(1, 1)), monkeypatch)
    some, full = flex.block_tables(flex.sort_tokens(call), call.problem)
    assert int(some.sum()) < 0.3 * some.numel()
    assert int(full.sum()) > 0.1 * int(some.sum())


@pytest.mark.parametrize("name", ["query", "key", "value", "temperature", "sink_logits"])
def test_no_gradient_on_cpu(name: str) -> None:
    case = Case(**SHARED)
    inputs = dict(zip(("query", "key", "value"), case.tensors(torch.float32), strict=True))
    inputs |= {"temperature": torch.tensor(0.5), "sink_logits": torch.zeros(4)}
    inputs[name].requires_grad_()
    options = {**case.options, **inputs}
    with pytest.raises(BackendError, match=f"{name} requires grad and FlexAttention has no backward on CPU"):
        focus_attention(groups=case.ids, backend="flex", **options)
    with torch.no_grad():
        focus_attention(groups=case.ids, backend="flex", **options)


@pytest.mark.parametrize("engine", ["sorted", "chunked"])
def test_no_engine(engine: str) -> None:
    with pytest.raises(BackendError, match=f"engine '{engine}' was asked for"):
        Case(**SHARED).focus(f"flex:{engine}", torch.float32)


def test_no_float64() -> None:
    with pytest.raises(BackendError, match=r"query is torch\.float64"):
        Case(**SHARED).focus("flex", torch.float64)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BackendError, match="no C\\+\\+ compiler 'no-such-compiler'"):
        Case(**SHARED).focus("flex", torch.float32)
