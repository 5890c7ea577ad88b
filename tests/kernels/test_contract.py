"""Every engine that runs here against the dense contract: odd lengths, any k, any padding, any option."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_kernels import focus_attention, reference_attention

from .cases import Case, check

ENGINES = ["cpu:sorted", "cpu:chunked", "eager:sorted", "eager:chunked"]
HALF = [torch.bfloat16, torch.float16]


def served(case: Case, backend: str) -> bool:
    sorted_engine = backend.endswith("sorted")
    chunked_only = case.match == "probe" and case.top_k > 1
    chunked_only |= case.temperature is not None and case.temperature_scope == "distant"
    return not (sorted_engine and (chunked_only or case.softcap)) and not (backend.startswith("cpu") and case.softcap)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_groups = draw(st.integers(1, 9))
    window = draw(st.integers(0, 40))
    heads = draw(st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1)]))
    return Case(
        tokens=draw(st.integers(1, 330)),
        window=window,
        num_groups=num_groups,
        top_k=draw(st.integers(1, num_groups)),
        sinks=draw(st.integers(0, min(window, 6))),
        batch=draw(st.integers(1, 2)),
        heads=heads,
        size=draw(st.sampled_from([4, 8, 11])),
        value_size=draw(st.sampled_from([None, 5, 16])),
        match=draw(st.sampled_from(["probe", "share"])),
        temperature=draw(st.sampled_from([None, 0.5, 1.7, "heads"])),
        temperature_scope=draw(st.sampled_from(["distant", "all"])),
        softcap=draw(st.sampled_from([None, None, 4.0])),
        learned_sinks=draw(st.booleans()),
        padding=draw(st.sampled_from(["none", "left", "right", "ragged"])),
        documents=draw(st.integers(1, 3)),
        groups=draw(st.sampled_from(["random", "random", "one", "alternate"])),
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=120, deadline=None)
@given(case=cases())
def test_any_problem(case: Case) -> None:
    for backend in ENGINES:
        if served(case, backend):
            check(case, backend)


@pytest.mark.parametrize("tokens", [1, 2, 16, 17, 97, 1025])
@pytest.mark.parametrize("backend", ENGINES)
def test_odd_lengths(tokens: int, backend: str) -> None:
    check(Case(tokens=tokens, window=16), backend, torch.float32)


@pytest.mark.parametrize("num_groups", [1, 2, 7, 16, 64])
@pytest.mark.parametrize("match", ["probe", "share"])
def test_number_of_groups(num_groups: int, match: str) -> None:
    for top_k in {1, min(2, num_groups), num_groups}:
        check(Case(tokens=200, num_groups=num_groups, top_k=top_k, match=match), "cpu", torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("backend", ENGINES)
def test_precision(dtype: torch.dtype, backend: str) -> None:
    for seed in range(3):
        check(Case(tokens=700, window=32, size=64, heads=(6, 2), seed=seed), backend, dtype)
        if backend.endswith("chunked"):
            check(Case(tokens=700, window=32, size=64, heads=(6, 2), top_k=2, temperature="heads"), backend, dtype)


@pytest.mark.parametrize("backend", ["cpu:sorted", "cpu:chunked"])
def test_every_grain_of_tile(backend: str) -> None:
    """Long enough that large, medium and small tiles all occur, with a list that ends in the middle of one."""
    for groups in ("random", "one"):
        check(Case(tokens=5003, num_groups=2, window=64, heads=(1, 1), groups=groups), backend)
    check(Case(tokens=2500, num_groups=2, window=64, heads=(6, 2)), backend)  # heads folded into rows


@pytest.mark.parametrize("backend", ["cpu", "eager"])
@pytest.mark.parametrize("top_k", [1, 3])
def test_local_is_plain_causal_attention(backend: str, top_k: int) -> None:
    case = Case(tokens=33, window=32, num_groups=3, top_k=top_k)
    q, k, v = case.tensors()
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(case.focus(backend)[0], plain, atol=1e-12, rtol=0)


@pytest.mark.parametrize("match", ["probe", "share"])
def test_all_groups_is_plain_causal_attention(match: str) -> None:
    case = Case(tokens=300, num_groups=5, top_k=5, match=match)
    q, k, v = case.tensors()
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(case.focus("auto")[0], plain, atol=1e-12, rtol=0)


@pytest.mark.parametrize("match", ["probe", "share"])
def test_few_groups_is_not(match: str) -> None:
    case = Case(tokens=300, num_groups=5, top_k=2, match=match)
    q, k, v = case.tensors()
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert float((case.focus("auto")[0] - plain).abs().max()) > 0.01


def test_match_rules_differ_and_nest() -> None:
    """A probing query sees a subset of what a sharing one sees: its logsumexp cannot be larger."""
    probe, share = (Case(tokens=300, top_k=2, match=match).focus("auto")[1] for match in ("probe", "share"))
    assert (probe <= share + 1e-12).all()
    assert (probe < share - 1e-6).any()


@pytest.mark.parametrize("backend", ["cpu:sorted", "cpu:chunked"])
def test_layout_does_not_matter(backend: str) -> None:
    """Projections come as [B, T, H, D] views: strides are not a contract."""
    case = Case(tokens=300, batch=2)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in case.tensors())
    strided = focus_attention(q, k, v, case.ids, backend=backend, **case.options)
    torch.testing.assert_close(strided, case.focus(backend)[0], atol=1e-13, rtol=0)
    last = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in case.tensors()]
    torch.testing.assert_close(
        focus_attention(*last, case.ids, backend=backend, **case.options), case.focus(backend)[0], atol=1e-13, rtol=0
    )


def test_empty_batch_and_all_padding() -> None:
    case = Case(tokens=20)
    q, k, v = case.tensors()
    options = {**case.options, "padding_mask": torch.zeros(1, 20, dtype=torch.bool)}
    out, lse = focus_attention(q, k, v, case.ids, return_lse=True, **options)
    assert (out == 0).all()
    assert (lse == -float("inf")).all()
    assert focus_attention(q[:, :, :0], k[:, :, :0], v[:, :, :0], case.ids[:, :0], **case.options).shape == (
        1,
        4,
        0,
        16,
    )


def test_reference_takes_the_same_arguments() -> None:
    import inspect

    mine, oracle = (inspect.signature(f).parameters for f in (focus_attention, reference_attention))
    assert list(mine) == list(oracle)


def test_reference_is_a_backend() -> None:
    case = Case(tokens=50, top_k=2, temperature="heads")
    torch.testing.assert_close(case.focus("reference")[0], case.reference()[0])
