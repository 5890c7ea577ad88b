"""NaN and infinity in keys and values: NaN in the rows that see them, not one bit changed in any other."""

from __future__ import annotations

from copy import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from focus_kernels import FocusError, attend_chunk, focus_attention, reference_attention
from focus_kernels.contain import find
from focus_kernels.layout import token_documents, token_positions
from focus_kernels.problem import check_problem
from focus_kernels.reference import visible

from .cases import Case
from .test_contract import ENGINES, cases, served
from .test_stream import Feed
from .test_stream import cases as stream_cases

BAD = [float("nan"), float("inf"), -float("inf")]


def rows_that_see(case: Case, bad: Tensor) -> Tensor:
    """[B, Hq, T], from the dense mask of the contract; bad [B, Hkv, T]."""
    given = {name: x for name, x in case.options.items() if name not in ("padding_mask", "sequence_ids")}
    problem = check_problem(
        q_heads=case.heads[0],
        head_size=case.size,
        device=torch.device("cpu"),
        top_k=case.top_k,
        scale=None,
        **given,
    )
    layout = [case.options[name] for name in ("padding_mask", "sequence_ids")]
    documents = token_documents(case.batch, case.tokens, *layout, torch.device("cpu"))
    mask, _ = visible(token_positions(documents), documents, case.ids, problem)
    return (mask[:, None] & bad[:, :, None]).any(-1).repeat_interleave(case.heads[0] // case.heads[1], 1)


def break_some(case: Case, count: int) -> Tensor:
    """Put NaN and infinities into some keys and values of the case, in place; [B, Hkv, T] says where."""
    g = torch.Generator().manual_seed(case.seed + 1)
    bad = torch.zeros(case.batch, case.heads[1], case.tokens, dtype=torch.bool)
    for number in range(count):
        row, head, token = (int(torch.randint(n, (), generator=g)) for n in bad.shape)
        tensor = (case.key, case.value)[number % 2]
        tensor[row, head, token, number % tensor.shape[3]] = BAD[number % 3]
        bad[row, head, token] = True
    return bad


def zeroed(case: Case, bad: Tensor) -> Case:
    """The same with zeros in the place of what is broken."""
    other = copy(case)
    other.query = case.query.clone()
    other.key, other.value = (x.masked_fill(bad[..., None], 0) for x in (case.key, case.value))
    return other


def same_but(found: Tensor, plain: Tensor, seen: Tensor) -> None:
    assert torch.isnan(found[seen]).all()
    assert torch.equal(found[~seen], plain[~seen])


@settings(max_examples=30, deadline=None)
@given(case=cases(), count=st.sampled_from([1, 1, 2, 9]), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_only_rows_that_see_it(case: Case, count: int, dtype: torch.dtype) -> None:
    bad = break_some(case, count)
    plain, seen = zeroed(case, bad), rows_that_see(case, bad)
    for backend in [*ENGINES, "reference"]:
        if served(case, backend):
            for found, wanted in zip(case.focus(backend, dtype), plain.focus(backend, dtype), strict=True):
                same_but(found, wanted, seen)
    for found, wanted in zip(case.reference(), plain.reference(), strict=True):
        same_but(found, wanted, seen)


@pytest.mark.parametrize("backend", ENGINES)
def test_most_rows_do_not_see_it(backend: str) -> None:
    """A single broken key in one of four groups: three quarters of what follows its window stay as they are."""
    case = Case(tokens=400, heads=(4, 2))
    case.key[0, 0, 50, 3] = float("nan")
    out, _ = case.focus(backend)
    broken = out.isnan().any(-1)[0]
    assert not broken[2:].any()  # the query heads of the other key head
    assert not broken[:, :50].any()
    assert broken[:2, 50:59].all()
    assert 0.1 < float(broken[0, 59:].float().mean()) < 0.5


@settings(max_examples=40, deadline=None)
@given(case=stream_cases(), data=st.data(), count=st.sampled_from([1, 2, 9]))
def test_streams(case: Case, data: st.DataObject, count: int) -> None:
    """However the tokens come in, also when broken ones are cropped away or their rows are chosen anew."""
    bad = break_some(case, count)
    plain, seen = zeroed(case, bad), rows_that_see(case, bad)
    feeds = Feed(case, torch.float64), Feed(plain, torch.float64)
    start = 0
    for stop in [*sorted(data.draw(st.lists(st.integers(0, case.tokens), min_size=1, max_size=3))), case.tokens]:
        way = data.draw(st.sampled_from(["prefill", "attend", "decode"]))
        found, wanted = (getattr(feed, way)(start, stop) for feed in feeds)
        if way != "prefill" and stop > start:
            same_but(found, wanted, seen[feeds[0].rows][:, :, start:stop])
        start = stop
        if case.padding == "none" and data.draw(st.booleans()):
            removed = data.draw(st.integers(0, start))
            start -= removed
            for feed in feeds:
                feed.stream.crop([removed] * len(feed.rows))
        if data.draw(st.booleans()):
            chosen = data.draw(st.lists(st.integers(0, len(feeds[0].rows) - 1), min_size=1, max_size=3))
            for feed in feeds:
                feed.stream.select_rows(chosen)
                feed.rows = [feed.rows[i] for i in chosen]


def test_queries_that_look_elsewhere() -> None:
    """Into all groups: whoever comes after a broken token sees it; into none of its groups: only its window does."""
    case = Case(tokens=60, groups="alternate", sinks=0)
    case.value[0, 1, 20, 0] = float("inf")
    feed = Feed(case, torch.float64)
    feed.attend(0, 60)
    everything = torch.arange(4).expand(1, 60, -1)
    for looking, wanted in ((everything, range(20, 60)), (torch.full((1, 60, 1), 1), range(20, 29))):
        out, lse = attend_chunk(feed.query, feed.stream, query_groups=looking, return_lse=True)
        broken = torch.zeros(1, 4, 60, dtype=torch.bool)
        broken[:, 2:, list(wanted)] = True
        assert torch.equal(out.isnan().any(-1), broken)
        assert torch.equal(lse.isnan(), broken)


def test_a_stream_that_forgot_it_is_whole() -> None:
    case = Case(tokens=60, batch=2)
    case.key[1, :, 40:50] = float("nan")
    feed = Feed(case, torch.float64)
    feed.prefill(0, 60)
    assert list(feed.stream.broken) == [1]
    feed.stream.crop([0, 15])
    assert feed.stream.broken[1].positions.tolist() == [40, 41, 42, 43, 44]
    feed.stream.crop([0, 5])
    assert not feed.stream.broken


def test_a_refused_chunk_leaves_no_trace() -> None:
    case = Case(tokens=20)
    feed = Feed(case, torch.float64)
    feed.prefill(0, 20)
    with pytest.raises(FocusError, match="group id 9"):
        feed.stream.append(feed.key[:, :, :1] * float("nan"), feed.value[:, :, :1], torch.full((1, 1, 1), 9))
    assert not feed.stream.broken


@pytest.mark.parametrize("padding", ["left", "right", "ragged"])
def test_padding_may_hold_anything(padding: str) -> None:
    case, plain = Case(batch=2, padding=padding), Case(batch=2, padding=padding)
    for tensor in (case.query, case.key, case.value):
        tensor.transpose(1, 2)[~case.mask] = float("nan")
    for backend in [*ENGINES, "reference"]:
        found, wanted = case.focus(backend), plain.focus(backend)
        assert torch.equal(found[0], wanted[0])
        assert torch.equal(found[1], wanted[1])
    feed = Feed(case, torch.float64)
    torch.testing.assert_close(feed.attend(0, case.tokens), plain.reference()[0])
    assert not feed.stream.broken


@pytest.mark.parametrize("backend", [*ENGINES, "reference"])
@pytest.mark.parametrize("with_query", [False, True])
def test_gradients(backend: str, with_query: bool) -> None:
    """NaN where the rows that see it are; for all else that of a loss over the other rows, of intact keys."""
    case = Case(tokens=120, batch=2, padding="left", learned_sinks=True)
    bad = break_some(case, 3)
    bad &= case.mask[:, None]
    seen = rows_that_see(case, bad)
    plain = zeroed(case, ~(case.key.isfinite().all(-1) & case.value.isfinite().all(-1)))
    if with_query:  # as in a model: what is broken has a broken query too
        case.query[seen] = float("nan")
    g = torch.Generator().manual_seed(5)
    weight = torch.randn(2, 4, 120, 16, generator=g, dtype=torch.float64)
    weight.masked_fill_(seen[..., None], 0)

    def gradients(one: Case) -> list[Tensor]:
        inputs = [x.clone().requires_grad_() for x in one.tensors()]
        out, lse = focus_attention(*inputs, one.ids, backend=backend, return_lse=True, **one.options)  # type: ignore[misc]
        kept = ~seen & case.mask[:, None]
        loss = (out * weight)[kept].sum() + lse[kept].sin().sum()
        return list(torch.autograd.grad(loss, inputs))

    broken = ~(case.key.isfinite().all(-1) & case.value.isfinite().all(-1))
    for found, wanted, where in zip(gradients(case), gradients(plain), (seen, broken, broken), strict=True):
        assert torch.isnan(found[where]).all()
        torch.testing.assert_close(found[~where], wanted[~where], atol=1e-12, rtol=0)


def test_a_sum_that_overflows_is_no_alarm() -> None:
    key = torch.full((1, 1, 8, 4), 3e38)
    assert not key.sum().isfinite()
    assert find(key, torch.zeros_like(key)) is None
    assert find(torch.full((1, 1, 4096, 4), 60.0).half(), torch.zeros(1, 1, 4096, 4).half()) is None
    key[0, 0, 3, 0] = float("inf")
    assert find(key, torch.zeros_like(key)).nonzero().tolist() == [[0, 0, 3]]  # type: ignore[union-attr]


def test_the_oracle_needs_no_batch_of_its_own() -> None:
    """A broken row of a batch, or a broken document of a packed one, leaves its neighbours alone."""
    case = Case(tokens=60, batch=2, documents=3)
    plain = reference_attention(*case.tensors(), case.ids, **case.options)
    case.key[0, :, 20:40] = float("nan")
    found = focus_attention(*case.tensors(), case.ids, **case.options)
    assert found[0, :, 20:40].isnan().all()  # type: ignore[index]
    for rows in ((0, slice(0, 20)), (0, slice(40, 60)), (1, slice(None))):
        torch.testing.assert_close(found[rows[0]][:, rows[1]], plain[rows[0]][:, rows[1]])  # type: ignore[index]
