"""Decoding on CPU, token by token: the contract for every option, in few calls, reading nothing twice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_kernels import FocusError, KeyBuckets, attend_chunk, decode

from .cases import Case
from .test_stream import Feed, agree, cases, options

pytestmark = pytest.mark.usefixtures("two_threads")
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@settings(max_examples=60, deadline=None)
@given(case=cases(), data=st.data(), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_after_any_prompt(case: Case, data: st.DataObject, dtype: torch.dtype) -> None:
    """Rows of different lengths, some still within their sinks or their window."""
    start = data.draw(st.integers(0, case.tokens - 1))
    case.mask[:, start:] = True
    feed = Feed(case, dtype)
    feed.prefill(0, start)
    agree(feed.decode(start, case.tokens), case.reference()[0][:, :, start:])


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("match", ["probe", "share"])
def test_every_precision(dtype: torch.dtype, top_k: int, match: str) -> None:
    case = Case(tokens=400, window=16, top_k=top_k, match=match, heads=(9, 3), size=32, learned_sinks=True)
    feed = Feed(case, dtype)
    feed.prefill(0, 300)
    got = feed.decode(300, 400)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), case.reference(dtype)[0][:, :, 300:], atol=LIMITS[dtype], rtol=0)


@pytest.mark.parametrize("temperature", [None, 0.6, "heads"])
@pytest.mark.parametrize("scope", ["distant", "all"])
def test_logsumexp(temperature: float | str | None, scope: str) -> None:
    case = Case(tokens=100, top_k=2, batch=2, temperature=temperature, temperature_scope=scope, learned_sinks=True)
    feed = Feed(case, torch.float64)
    feed.prefill(0, 99)
    feed.attend(99, 100)
    out, lse = attend_chunk(feed.query[:, :, 99:], feed.stream, return_lse=True, **options(case))
    want, want_lse = case.reference()
    agree(out, want[:, :, 99:])
    agree(lse, want_lse[:, :, 99:])


@pytest.mark.parametrize("backend", ["cpu", "eager"])
def test_agrees_with_the_general_way(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a turn of the window, and back to decoding after it."""
    case = Case(tokens=120, top_k=2, batch=2)
    feed = Feed(case, torch.float64)
    feed.prefill(0, 60)
    feed.decode(60, 71)
    assert all(row.turn for row in feed.stream.rows)
    if backend == "cpu":
        monkeypatch.setattr(decode, "serves", lambda *_: False)
    got = attend_chunk(feed.query[:, :, 70:71], feed.stream, backend=backend)
    monkeypatch.undo()
    agree(got, case.reference()[0][:, :, 70:71])
    agree(attend_chunk(feed.query[:, :, 70:71], feed.stream), case.reference()[0][:, :, 70:71])
    agree(feed.decode(71, 120), case.reference()[0][:, :, 71:])


def test_reads_sinks_window_and_its_buckets_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tokens=600, window=16, num_groups=4, top_k=2, heads=(6, 2))
    feed = Feed(case, torch.float32)
    feed.prefill(0, 599)
    right, read = decode._flash, []

    def counted(q: torch.Tensor, k: torch.Tensor, *rest: object, **more: object) -> object:
        assert k.shape[:2] == (1, 2)
        assert not read or q.shape[1] == 2, "heads that share keys must share the reading of buckets"
        read.append(k.shape[2])
        return right(q, k, *rest, **more)

    monkeypatch.setattr(decode, "_flash", counted)
    feed.attend(599, 600)
    distant = case.ids[0, 4 : 600 - 17, 0]
    buckets = [int((distant == group).sum()) for group in case.ids[0, 599].tolist()]
    assert read == [4 + 17, *buckets]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("temperature", [None, 0.6])
def test_long_lists_are_cut_among_the_threads(
    threads: int, temperature: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "CUT", 10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    case = Case(tokens=200, top_k=2, heads=(4, 2), temperature=temperature, learned_sinks=True, batch=2)
    for dtype in (torch.float64, torch.float32):
        feed = Feed(case, dtype)
        feed.prefill(0, 150)
        agree(feed.decode(150, 200), case.reference()[0][:, :, 150:])


def test_a_long_stream_of_tokens() -> None:
    """Buckets outgrow their room many times over."""
    case = Case(tokens=1500, window=16, heads=(2, 1), size=8, num_groups=3)
    feed = Feed(case, torch.float64)
    agree(feed.decode(0, 1500), case.reference()[0])
    assert feed.stream.recent.shape[3] <= 3 * 16


def test_says_what_is_wrong_with_a_token() -> None:
    case = Case(tokens=30, top_k=2)
    feed = Feed(case, torch.float64)
    feed.prefill(0, 29)
    _, k, v = case.tensors()
    k, v, ids = k[:, :, 29:], v[:, :, 29:], case.ids[:, 29:]
    for wrong, message in (
        ((k, v, ids + 7), "group id"),
        ((k, v, ids * 0), "lists group 0 twice"),
        ((k.float(), v.float(), ids), "torch.float32 on cpu, the stream holds"),
        ((k[..., :8], v, ids), "head sizes 8 and 16"),
        ((k, v, ids[..., :1]), "this chunk lists 1 groups, earlier ones 2"),
    ):
        with pytest.raises(FocusError, match=message):
            feed.stream.append(*wrong)
    assert feed.stream.lengths == [29]
    agree(feed.decode(29, 30), case.reference()[0][:, :, 29:])


def test_keeps_no_gradient() -> None:
    case = Case(tokens=30)
    _, k, v = (x.requires_grad_() for x in case.tensors())
    stream = KeyBuckets(num_groups=4, window=8)
    stream.prefill(k[:, :, :29], v[:, :, :29], case.ids[:, :29])
    stream.append(k[:, :, 29:], v[:, :, 29:], case.ids[:, 29:])
    assert not stream.recent.requires_grad
    assert not stream.pool.data.requires_grad
