"""Gradients through the merge: against autograd of the dense contract, and against finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_kernels import focus_attention, reference_attention

from .cases import Case


def gradients(case: Case, attend: Any, through: str = "both", **more: Any) -> list[torch.Tensor]:
    """Of query, key, value, and temperature and sink logits where there are any, for a random linear loss."""
    leaves = [x.clone().requires_grad_() for x in case.tensors()]
    options = dict(case.options)
    for name in ("temperature", "sink_logits"):
        if options[name] is not None:
            options[name] = torch.as_tensor(options[name], dtype=torch.float64).clone().requires_grad_()
            leaves.append(options[name])
    out, lse = attend(*leaves[:3], case.ids, return_lse=True, **options, **more)
    g = torch.Generator().manual_seed(5)
    weights = [torch.randn(x.shape, generator=g, dtype=torch.float64) for x in (out, lse)]
    real = case.mask[:, None].expand_as(lse)
    loss = (out * weights[0]).sum() if through != "lse" else 0
    if through != "out":
        loss = loss + (lse * weights[1])[real].sum()
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if x is None else x for leaf, x in zip(leaves, found, strict=True)]


def compare(case: Case, backend: str, through: str = "both") -> None:
    got = gradients(case, focus_attention, through, backend=backend)
    for mine, true in zip(got, gradients(case, reference_attention, through), strict=True):
        scale = max(float(true.abs().max()), 1.0)
        torch.testing.assert_close(mine / scale, true / scale, atol=1e-11, rtol=0)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), tokens=st.integers(1, 260), window=st.integers(0, 30), num_groups=st.integers(1, 6))
def test_any_problem(data: st.DataObject, tokens: int, window: int, num_groups: int) -> None:
    softcap = data.draw(st.sampled_from([None, None, 3.0]))
    case = Case(
        tokens=tokens,
        window=window,
        sinks=data.draw(st.integers(0, min(window, 5))),
        num_groups=num_groups,
        top_k=data.draw(st.integers(1, num_groups)),
        match=data.draw(st.sampled_from(["probe", "share"])),
        batch=data.draw(st.integers(1, 2)),
        value_size=data.draw(st.sampled_from([None, 8, 24])),
        temperature=data.draw(st.sampled_from([None, 0.6, "heads"])),
        temperature_scope=data.draw(st.sampled_from(["distant", "all"])),
        softcap=softcap,
        learned_sinks=data.draw(st.booleans()),
        padding=data.draw(st.sampled_from(["none", "left", "ragged"])),
        documents=data.draw(st.integers(1, 2)),
    )
    sortable = (case.top_k == 1 or case.match == "share") and softcap is None
    sortable &= case.temperature is None or case.temperature_scope == "all"
    name = "cpu" if softcap is None else "eager"
    for engine in ["chunked"] + ["sorted"] * sortable:
        compare(case, f"{name}:{engine}")


@pytest.mark.parametrize("backend", ["cpu:sorted", "cpu:chunked"])
def test_every_grain_of_tile(backend: str) -> None:
    compare(Case(tokens=2900, num_groups=2, window=64, heads=(2, 1), size=8), backend, "out")


@pytest.mark.parametrize("through", ["out", "lse"])
def test_each_output_alone(through: str) -> None:
    compare(Case(tokens=120, top_k=2, temperature="heads", learned_sinks=True), "cpu", through)


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("cpu:sorted", {"temperature": 0.8, "temperature_scope": "all"}),
        ("cpu:sorted", {"top_k": 2, "match": "share"}),
        ("cpu:chunked", {"temperature": 0.8}),
        ("cpu:chunked", {"top_k": 2, "temperature": "heads"}),
        ("eager:chunked", {"top_k": 2, "temperature": "heads", "softcap": 3.0}),
    ],
)
def test_finite_differences(backend: str, options: dict[str, Any]) -> None:
    case = Case(tokens=13, window=3, sinks=2, num_groups=3, heads=(2, 1), size=3, **options)
    temperature = case.options["temperature"]
    leaves = [x.clone().requires_grad_() for x in case.tensors()]
    if temperature is not None:
        leaves.append(torch.as_tensor(temperature, dtype=torch.float64).clone().requires_grad_())

    def attend(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        options = {**case.options, "temperature": leaves[3] if len(leaves) > 3 else None}
        return focus_attention(*leaves[:3], case.ids, backend=backend, return_lse=True, **options)  # type: ignore

    assert torch.autograd.gradcheck(attend, leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("backend", ["cpu:sorted", "cpu:chunked"])
def test_precision(dtype: torch.dtype, backend: str) -> None:
    """At most twice the error of dense attention's gradient in the same precision."""
    case = Case(tokens=400, window=32, size=64, heads=(6, 2))
    weight = torch.randn(case.query.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def grad(attend: Any, to: torch.dtype, **more: Any) -> list[torch.Tensor]:
        leaves = [x.to(dtype).to(to).requires_grad_() for x in case.tensors()]
        out = attend(*leaves, case.ids, **case.options, **more)
        return [x.double() for x in torch.autograd.grad((out * weight.to(to)).sum(), leaves)]

    true, dense = grad(reference_attention, torch.float64), grad(reference_attention, dtype)
    mine = grad(focus_attention, dtype, backend=backend)
    for t, d, m in zip(true, dense, mine, strict=True):
        assert float((m - t).abs().max()) <= 2 * float((d - t).abs().max())


def test_nothing_is_saved_without_grad() -> None:
    case = Case()
    q, k, v = (x.requires_grad_() for x in case.tensors())
    with torch.no_grad():
        assert focus_attention(q, k, v, case.ids, **case.options).grad_fn is None
    assert focus_attention(q, k, v, case.ids, **case.options).requires_grad
