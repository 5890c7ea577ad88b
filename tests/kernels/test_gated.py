"""Gradients for the soft assignments: against autograd of a dense gate that is hard forwards and soft backwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from focus_kernels import FocusError, focus_attention, gated_attention, reference_attention
from focus_kernels.layout import token_documents, token_positions
from focus_kernels.reference import matches

from .cases import Case


def dense_gate(case: Case, soft: Tensor, explored: Tensor) -> Tensor:
    """exp(logits) weighed by m, where m is the hard mask plus (overlap - its own value), for explored pairs."""
    q, k, v = case.tensors()
    options = case.options
    documents = token_documents(
        case.batch, case.tokens, options["padding_mask"], options["sequence_ids"], torch.device("cpu")
    )
    positions = token_positions(documents)
    distance = positions[:, :, None] - positions[:, None, :]
    causal = (distance >= 0) & (documents[:, :, None] == documents[:, None, :]) & (documents >= 0)[:, None, :]
    distant, sink = distance > case.window, (positions < case.sinks)[:, None, :]
    hard = causal & (~distant | sink | matches(case.ids, case.ids, case.match))
    gated = causal & distant & ~sink & matches(explored, explored, case.match)
    overlap = soft @ soft.mT
    weight = hard.double() + (overlap - overlap.detach()) * gated
    k, v = (x.repeat_interleave(case.heads[0] // case.heads[1], 1) for x in (k, v))
    logits = q @ k.mT * case.size**-0.5
    if case.temperature is not None:
        cooled = logits / torch.as_tensor(case.temperature, dtype=torch.float64).reshape(-1, 1, 1)
        logits = cooled if case.temperature_scope == "all" else torch.where(distant[:, None], cooled, logits)
    weight = torch.where(case.mask[:, :, None], weight, 1.0)  # rows of padding are left out below
    mass = (logits - logits.amax(-1, keepdim=True)).exp() * weight[:, None]
    if options["sink_logits"] is not None:
        extra = (options["sink_logits"].reshape(-1, 1, 1) - logits.amax(-1, keepdim=True)).exp()
    else:
        extra = 0
    return (mass @ v / (mass.sum(-1, keepdim=True) + extra)).masked_fill(~case.mask[:, None, :, None], 0)


def gradient(case: Case, attend: Any, soft: Tensor) -> Tensor:
    leaf = soft.clone().requires_grad_()
    out = attend(leaf)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    (found,) = torch.autograd.grad((out * weights).sum(), leaf)
    return found


def drawn(case: Case, top: int) -> tuple[Tensor, Tensor]:
    """Soft assignments, and a list of `top` groups that starts with the token's own."""
    generator = torch.Generator().manual_seed(3)
    soft = torch.randn(case.batch, case.tokens, case.num_groups, generator=generator, dtype=torch.float64).softmax(-1)
    rank = torch.zeros_like(soft).scatter_(2, case.ids, torch.arange(case.top_k, 0, -1.0).double().expand_as(case.ids))
    return soft, (rank + soft * 0.5).topk(top, -1).indices


@settings(max_examples=60, deadline=None)
@given(data=st.data(), tokens=st.integers(1, 200), window=st.integers(0, 30), num_groups=st.integers(1, 6))
def test_any_problem(data: st.DataObject, tokens: int, window: int, num_groups: int) -> None:
    top_k = data.draw(st.integers(1, num_groups))
    case = Case(
        tokens=tokens,
        window=window,
        sinks=data.draw(st.integers(0, min(window, 5))),
        num_groups=num_groups,
        top_k=top_k,
        match=data.draw(st.sampled_from(["probe", "share"])),
        batch=data.draw(st.integers(1, 2)),
        value_size=data.draw(st.sampled_from([None, 8, 24])),
        temperature=data.draw(st.sampled_from([None, 0.6, "heads"])),
        temperature_scope=data.draw(st.sampled_from(["distant", "all"])),
        learned_sinks=data.draw(st.booleans()),
        padding=data.draw(st.sampled_from(["none", "left", "ragged"])),
        documents=data.draw(st.integers(1, 3)),
        seed=data.draw(st.integers(0, 5)),
    )
    soft, explored = drawn(case, data.draw(st.integers(top_k, num_groups)))
    q, k, v = case.tensors()

    def gated(leaf: Tensor) -> Tensor:
        out = gated_attention(q, k, v, case.ids, leaf, explored=explored, backend="cpu", **case.options)
        assert torch.equal(out, focus_attention(q, k, v, case.ids, backend="cpu", **case.options))
        return out

    mine = gradient(case, gated, soft)
    true = gradient(case, lambda leaf: dense_gate(case, leaf, explored), soft)
    scale = max(float(true.abs().max()), 1.0)
    torch.testing.assert_close(mine / scale, true / scale, atol=1e-11, rtol=0)


@pytest.mark.parametrize("top_k", [1, 2])
def test_query_key_value_and_temperature_are_as_without_the_gate(top_k: int) -> None:
    case = Case(tokens=150, window=16, top_k=top_k)
    soft, explored = drawn(case, 4)
    found = []
    for gate in (False, True):
        leaves = [x.clone().requires_grad_() for x in case.tensors()]
        temperature = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
        options = {**case.options, "temperature": temperature}
        if gate:
            out = gated_attention(*leaves, case.ids, soft.requires_grad_(), explored=explored, **options)
        else:
            out = reference_attention(*leaves, case.ids, **options)
        found.append(torch.autograd.grad(out.square().sum(), [*leaves, temperature]))
    for mine, true in zip(*found, strict=True):
        torch.testing.assert_close(mine, true, atol=1e-10, rtol=1e-9)


def test_assignments_of_another_shape_are_refused() -> None:
    case = Case()
    with pytest.raises(FocusError, match=r"assignments must be \[1, 97, 4\]"):
        gated_attention(*case.tensors(), case.ids, torch.ones(1, 97, 3), **case.options)
