"""A stream that is prefilled, cropped, reordered or moved is the stream that was given just those tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from focus_kernels import FocusError, KeyBuckets, attend_chunk, focus_attention
from focus_kernels.pool import Pool
from focus_kernels.reference import matches

from .cases import Case


def new_stream(case: Case) -> KeyBuckets:
    """Some keep everything in order for a while: what is attended does not depend on it."""
    hold = case.seed % 3 * 25
    return KeyBuckets(num_groups=case.num_groups, window=case.window, sinks=case.sinks, match=case.match, hold=hold)


def options(case: Case) -> dict[str, Any]:
    return {name: case.options[name] for name in ("temperature", "temperature_scope", "softcap", "sink_logits")}


class Feed:
    """Feeds a case to a stream, part by part; `rows` are the case's rows that the stream holds."""

    def __init__(self, case: Case, dtype: torch.dtype):
        self.case, self.ids, self.mask = case, case.ids, case.mask
        self.query, self.key, self.value = case.tensors(dtype)
        self.rows = list(range(case.batch))
        self.stream = new_stream(case)

    def part(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        some = slice(start, stop)
        tensors = (self.key[:, :, some], self.value[:, :, some], self.ids[:, some], self.mask[:, some])
        return tuple(x[self.rows] for x in tensors)  # type: ignore[return-value]

    def prefill(self, start: int, stop: int) -> None:
        self.stream.prefill(*self.part(start, stop))

    def attend(self, start: int, stop: int) -> Tensor:
        self.stream.append(*self.part(start, stop))
        return attend_chunk(self.query[self.rows, :, start:stop], self.stream, **options(self.case))  # type: ignore[return-value]

    def file_away(self, start: int, stop: int) -> None:
        """Attend, then give the chunk's room back."""
        self.attend(start, stop)
        self.stream.file_away()

    def decode(self, start: int, stop: int) -> Tensor:
        """Token by token."""
        self.prefill(start, start)
        outs = [self.attend(place, place + 1) for place in range(start, stop)]
        return torch.cat(outs, 2) if outs else self.query[:, :, :0, : self.value.shape[3]]

    def some_way(self, data: st.DataObject) -> Callable[[int, int], object]:
        return data.draw(st.sampled_from([self.prefill, self.attend, self.decode, self.file_away]))


@st.composite
def cases(draw: st.DrawFn, padding: bool = True) -> Case:
    num_groups, window = draw(st.integers(1, 6)), draw(st.sampled_from([0, 3, 8, 20]))
    return Case(
        tokens=draw(st.integers(3, 150)),
        window=window,
        num_groups=num_groups,
        top_k=draw(st.integers(1, min(num_groups, 3))),
        sinks=draw(st.sampled_from([0, min(window, 4)])),
        batch=draw(st.integers(1, 3)),
        heads=draw(st.sampled_from([(4, 2), (3, 1), (2, 2)])),
        value_size=draw(st.sampled_from([None, 8])),
        match=draw(st.sampled_from(["probe", "share"])),
        temperature=draw(st.sampled_from([None, 0.6, "heads"])),
        temperature_scope=draw(st.sampled_from(["distant", "all"])),
        learned_sinks=draw(st.booleans()),
        padding=draw(st.sampled_from(["none", "ragged", "left"])) if padding else "none",
        seed=draw(st.integers(0, 99)),
    )


PRECISION = {torch.float64: 1e-12, torch.float32: 1e-5}


def agree(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.double(), want.double(), atol=PRECISION[got.dtype], rtol=0)


def contents(stream: KeyBuckets) -> dict[tuple[int, ...], tuple[Tensor, Tensor]]:
    """Every list of keys and values that is held, recent ones under (row, -1)."""
    found = {}
    for name, span in stream.pool.spans.items():
        if span.used:
            rows = slice(span.start, span.start + span.used)
            found[name] = (stream.pool.key[:, rows], stream.pool.value[:, rows])
    for number, row in enumerate(stream.rows):
        rows = slice(row.start, row.start + row.count)
        found[number, -1] = (stream.recent_key[number][:, rows], stream.recent_value[number][:, rows])
    return found


def same_contents(mine: KeyBuckets, other: KeyBuckets) -> None:
    assert mine.lengths == other.lengths
    a, b = contents(mine), contents(other)
    assert a.keys() == b.keys()
    for name, pair in a.items():
        for x, y in zip(pair, b[name], strict=True):
            assert torch.equal(x, y), name
    for number, length in enumerate(mine.lengths):
        assert torch.equal(mine.groups[number, :length], other.groups[number, :length])


@settings(max_examples=60, deadline=None)
@given(case=cases(), data=st.data(), dtype=st.sampled_from(list(PRECISION)))
def test_prefill_is_append_and_eviction(case: Case, data: st.DataObject, dtype: torch.dtype) -> None:
    """Onto an empty stream and onto others; what follows sees what it would have seen."""
    cuts = sorted(data.draw(st.lists(st.integers(0, case.tokens - 1), min_size=1, max_size=3)))
    feed, plain = Feed(case, dtype), Feed(case, dtype)
    start = 0
    for cut in cuts:
        feed.some_way(data)(start, cut)
        plain.attend(start, cut)
        start = cut
    feed.prefill(start, start)
    plain.stream._evict()
    same_contents(feed.stream, plain.stream)
    ending = data.draw(st.sampled_from([feed.attend, feed.decode]))
    agree(ending(start, case.tokens), case.reference()[0][:, :, start:])


def test_prefill_holds_few_recent_tokens() -> None:
    feed = Feed(Case(tokens=3000, window=32), torch.float32)
    feed.prefill(0, 3000)
    assert feed.stream.recent_key.shape[2] <= 3 * 32


@settings(max_examples=100, deadline=None)
@given(case=cases(), data=st.data(), dtype=st.sampled_from(list(PRECISION)))
def test_crop_is_exact(case: Case, data: st.DataObject, dtype: torch.dtype) -> None:
    """What is left is what a stream of the kept tokens holds, whatever came in between; then other tokens follow."""
    feed, start = Feed(case, dtype), 0
    for _ in range(data.draw(st.integers(1, 3))):
        stop = data.draw(st.integers(start, case.tokens))
        feed.some_way(data)(start, stop)
        start = stop
        counts = [data.draw(st.integers(0, length)) for length in feed.stream.lengths]
        lengths = [length - count for length, count in zip(feed.stream.lengths, counts, strict=True)]
        feed.stream.crop(counts)
        # rows now hold different prefixes of what they saw: begin again with what a row really has
        kept = torch.zeros_like(feed.mask)
        for row, length in enumerate(lengths):
            kept[row] = feed.mask[row] & (feed.mask[row].cumsum(0) <= length)
        feed.mask = torch.cat([kept[:, :start], feed.mask[:, start:]], 1)
        fresh = Feed(case, dtype)
        fresh.mask = feed.mask
        fresh.prefill(0, start)
        feed.stream._evict()
        same_contents(feed.stream, fresh.stream)
    if start < case.tokens:
        case.options["padding_mask"] = feed.mask
        ending = data.draw(st.sampled_from([feed.attend, feed.decode]))
        agree(ending(start, case.tokens), case.reference()[0][:, :, start:])


def test_crop_to_nothing_and_back() -> None:
    case = Case(tokens=60, batch=2)
    feed = Feed(case, torch.float64)
    feed.prefill(0, 60)
    feed.stream.crop([60, 60])
    assert feed.stream.lengths == [0, 0]
    agree(feed.attend(0, 60), case.reference()[0])


def test_crop_says_what_is_wrong() -> None:
    feed = Feed(Case(tokens=20, batch=2), torch.float64)
    feed.prefill(0, 20)
    with pytest.raises(FocusError, match="crop got 1 counts for a stream of 2 rows"):
        feed.stream.crop([1])
    with pytest.raises(FocusError, match=r"cannot crop 21 tokens of row 1, which has 20: give 0\.\.20"):
        feed.stream.crop([0, 21])
    with pytest.raises(FocusError, match="cannot crop -1 tokens"):
        feed.stream.crop([-1, 0])
    assert feed.stream.lengths == [20, 20]


@pytest.mark.parametrize("edit", ["prefill", "crop"])
def test_nothing_to_attend(edit: str) -> None:
    feed = Feed(Case(tokens=20), torch.float64)
    feed.attend(0, 10)
    if edit == "prefill":
        feed.prefill(10, 20)
    else:
        feed.stream.crop([2])
    with pytest.raises(FocusError, match="append one before attending"):
        attend_chunk(feed.query[:, :, 10:20], feed.stream)


@settings(max_examples=60, deadline=None)
@given(case=cases(), data=st.data(), dtype=st.sampled_from(list(PRECISION)))
def test_select_rows(case: Case, data: st.DataObject, dtype: torch.dtype) -> None:
    """Beams, repeats, omissions: each new row goes on as the old one would have, on its own."""
    feed, start = Feed(case, dtype), 0
    for stop in sorted(data.draw(st.lists(st.integers(0, case.tokens - 1), min_size=1, max_size=2))):
        feed.some_way(data)(start, stop)
        start = stop
        many = len(feed.rows)
        chosen = data.draw(st.lists(st.integers(0, many - 1), min_size=1, max_size=4))
        feed.stream.select_rows(torch.tensor(chosen) if data.draw(st.booleans()) else chosen)
        feed.rows = [feed.rows[i] for i in chosen]
    ending = data.draw(st.sampled_from([feed.attend, feed.decode]))
    agree(ending(start, case.tokens), case.reference()[0][feed.rows, :, start:])


def test_rows_selected_twice_are_apart() -> None:
    case = Case(tokens=60, batch=1)
    feed = Feed(case, torch.float64)
    feed.prefill(0, 40)
    feed.stream.select_rows([0, 0])
    feed.stream.crop([20, 0])
    feed.rows = [0, 0]
    got = feed.attend(40, 60)
    agree(got[1:], case.reference()[0][:, :, 40:])
    case.options["padding_mask"] = (torch.arange(60) < 20) | (torch.arange(60) >= 40)[None]
    agree(got[:1], case.reference()[0][:, :, 40:])


def test_rows_as_they_are_cost_nothing() -> None:
    feed = Feed(Case(tokens=40, batch=2), torch.float64)
    feed.prefill(0, 40)
    before = feed.stream.recent_key.data_ptr(), feed.stream.pool.key.data_ptr()
    feed.stream.select_rows([0, 1])
    assert before == (feed.stream.recent_key.data_ptr(), feed.stream.pool.key.data_ptr())
    with pytest.raises(FocusError, match=r"cannot select rows \[0, 2\] of a stream of 2 rows"):
        feed.stream.select_rows([0, 2])
    with pytest.raises(FocusError, match="at least one"):
        feed.stream.select_rows([])


def test_moves_everything() -> None:
    stream = new_stream(Case())
    assert stream.device is None
    assert stream.to("cpu") is stream
    feed = Feed(Case(tokens=40, batch=2, padding="ragged", size=11), torch.float64)
    feed.attend(0, 40)
    assert feed.stream.device == torch.device("cpu")
    assert feed.stream.to("meta") is feed.stream
    stream, pool = feed.stream, feed.stream.pool
    held = [stream.recent_key, stream.recent_value, stream.groups, pool.key, pool.value]
    assert all(x.device.type == "meta" for x in [*held, *(row.places for row in stream.rows)])
    assert stream.device == torch.device("meta")
    assert stream.page == pool.align == 256  # what kernels on other devices want
    assert all(span.start % 256 == 0 for span in pool.spans.values())
    assert {x.shape[-1] for x in (held[0], held[1], held[3], held[4])} == {16}
    with pytest.raises(FocusError, match=r"torch.float64 on cpu, the stream holds 2 rows .* on meta"):
        feed.attend(0, 40)


def expected(case: Case, query_groups: Tensor, start: int) -> Tensor:
    """The contract for queries from `start` on that look into other groups than their own."""
    q, k, v = case.tensors()
    i, j = torch.arange(start, case.tokens)[:, None], torch.arange(case.tokens)
    repeat = case.heads[0] // case.heads[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    near = i - j <= case.window
    seen = (j <= i) & (near | (j < case.sinks) | matches(query_groups, case.ids, case.match))
    t = torch.as_tensor(1.0 if case.temperature is None else case.temperature, dtype=torch.float64)
    logits = q[:, :, start:] @ k.transpose(2, 3) * case.size**-0.5
    cool = near if case.temperature_scope == "distant" else torch.zeros_like(near)
    logits = torch.where(cool, logits, logits / t.reshape(-1, 1, 1)).masked_fill(~seen[:, None], -float("inf"))
    learned = case.options["sink_logits"]
    if learned is not None:
        logits = torch.cat([logits, learned.view(-1, 1, 1).expand(*logits.shape[:3], 1)], -1)
        v = torch.nn.functional.pad(v, (0, 0, 0, 1))
    return torch.softmax(logits, -1) @ v


@settings(max_examples=80, deadline=None)
@given(case=cases(padding=False), data=st.data(), dtype=st.sampled_from(list(PRECISION)))
def test_queries_look_into_other_groups(case: Case, data: st.DataObject, dtype: torch.dtype) -> None:
    start = data.draw(st.integers(0, case.tokens - 1))
    count = data.draw(st.integers(1, case.num_groups))
    g = torch.Generator().manual_seed(case.seed)
    others = torch.rand(case.batch, case.tokens - start, case.num_groups, generator=g).topk(count, -1).indices
    feed = Feed(case, dtype)
    feed.prefill(0, start)
    feed.attend(start, case.tokens)
    got = attend_chunk(feed.query[:, :, start:], feed.stream, query_groups=others, **options(case))
    agree(got, expected(case, others, start))


@pytest.mark.parametrize("match", ["probe", "share"])
@pytest.mark.parametrize("chunk", [1, 30])
def test_all_groups_is_dense(match: str, chunk: int) -> None:
    case = Case(tokens=200, top_k=2, match=match, padding="none", batch=2)
    feed = Feed(case, torch.float64)
    feed.prefill(0, 200 - chunk)
    feed.attend(200 - chunk, 200)
    everything = torch.arange(case.num_groups).expand(2, chunk, -1)
    got = attend_chunk(feed.query[:, :, -chunk:], feed.stream, query_groups=everything)
    dense = torch.nn.functional.scaled_dot_product_attention(*case.tensors(), is_causal=True, enable_gqa=True)
    agree(got, dense[:, :, -chunk:])


def test_query_groups_are_checked() -> None:
    feed = Feed(Case(tokens=20), torch.float64)
    feed.attend(0, 20)
    for groups, message in (
        (torch.zeros(1, 3, 1, dtype=torch.long), r"query_groups must be \[1, 20, k\], got shape \[1, 3, 1\]"),
        (torch.full((1, 20, 1), 9), "group id 9"),
        (torch.zeros(1, 20, 2, dtype=torch.long), "twice"),
    ):
        with pytest.raises(FocusError, match=message):
            attend_chunk(feed.query, feed.stream, query_groups=groups)


@pytest.mark.parametrize("tokens", [4096, 10000])
@pytest.mark.parametrize("groups", ["random", "one"])
def test_memory_is_that_of_the_keys(tokens: int, groups: str) -> None:
    """All that is held, room to grow included, beside the plain keys and values: after a prompt, while decoding."""
    g = torch.Generator().manual_seed(0)
    stream = KeyBuckets(num_groups=8, window=128)
    ids = torch.randint(0, 8 if groups == "random" else 1, (1, tokens + 1000, 1), generator=g)
    keys = torch.randn(1, 3, tokens, 64, generator=g)
    stream.prefill(keys, keys, ids[:, :tokens])

    def ratio() -> float:
        return stream.memory() / (sum(stream.lengths) * 2 * 3 * 64 * 4)

    assert 1 < ratio() <= 1.1
    worst = 0.0
    for step in range(tokens, tokens + 1000):
        stream.append(keys[:, :, :1], keys[:, :, :1], ids[:, step : step + 1])
        worst = max(worst, ratio())
    assert worst <= 1.1
    tensors = [stream.recent, stream.groups, stream.pool.data]
    assert stream.memory() == sum(x.untyped_storage().nbytes() for x in tensors)


@pytest.mark.parametrize(("tokens", "chunk"), [(4096, 1024), (20480, 4096), (65536, 1024)])
def test_a_length_that_is_known_takes_no_more_memory(tokens: int, chunk: int, monkeypatch) -> None:
    """And from many tokens on, what buckets have by then says well enough what they will have: no full pool moves."""
    g = torch.Generator().manual_seed(0)
    stream = KeyBuckets(num_groups=8, window=128)
    stream.expect(tokens)
    moved: list[int] = []
    rebuild = Pool.rebuild

    def noted(pool: Pool, *arguments: Any) -> None:
        moved.append(sum(span.used for span in pool.spans.values()))
        rebuild(pool, *arguments)

    monkeypatch.setattr(Pool, "rebuild", noted)
    for _ in range(tokens // chunk):
        keys = torch.randn(1, 3, chunk, 64, generator=g)
        stream.append(keys, keys, torch.randint(0, 8, (1, chunk, 1), generator=g))
    stream.file_away()
    assert stream.memory() <= 1.1 * tokens * 2 * 3 * 64 * 4
    assert tokens < 65536 or max(moved) <= tokens / 4


def test_streams_and_calls_work_in_and_out_of_inference_mode():
    """What was made in inference mode (buffers, masks, the stream itself) serves outside it too."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 400, 16, generator=generator) for _ in range(3))
    groups = torch.randint(0, 3, (1, 400, 1), generator=generator)
    options = {"num_groups": 3, "window": 20}
    stream = KeyBuckets(**options)
    with torch.inference_mode():
        inside = focus_attention(query, key, value, groups, **options)
        stream.prefill(key[:, :, :200], value[:, :, :200], groups[:, :200])
    for modes in ((torch.no_grad, torch.inference_mode, torch.no_grad) * 67)[:200]:
        with modes():
            at = slice(stream.lengths[0], stream.lengths[0] + 1)
            stream.append(key[:, :, at], value[:, :, at], groups[:, at])
            torch.testing.assert_close(attend_chunk(query[:, :, at], stream), inside[:, :, at])
    with torch.inference_mode():
        stream.select_rows([0, 0])
    stream.crop([3, 150])
    query.requires_grad_()
    focus_attention(query, key, value, groups, **options).sum().backward()
    assert bool(query.grad.isfinite().all())


@pytest.mark.parametrize("groups", ["one", "alternate"])
def test_a_pool_that_grew_many_times_holds_what_one_prompt_leaves(groups: str) -> None:
    case = Case(tokens=1500, batch=2, heads=(1, 1), size=4, groups=groups)
    grown, whole = Feed(case, torch.float64), Feed(case, torch.float64)
    for start in range(0, 1500, 3):
        grown.stream.append(*grown.part(start, start + 3))
    grown.prefill(1500, 1500)
    whole.prefill(0, 1500)
    same_contents(grown.stream, whole.stream)
    for feed in (grown, whole):
        feed.stream.crop([1495, 700])
    same_contents(grown.stream, whole.stream)


@pytest.mark.parametrize("first", ["append", "prefill"])
def test_a_length_that_is_expected_takes_no_more_memory(first):
    """However the stream begins: the first tokens tell nothing of how long the lists are going to be."""
    g = torch.Generator().manual_seed(0)
    key, value = (torch.randn(1, 2, 2048, 16, generator=g) for _ in range(2))
    groups = torch.arange(2048)[torch.randperm(2048, generator=g)].view(1, -1, 1) % 4
    stream = KeyBuckets(num_groups=4, window=16, sinks=4)
    stream.expect(2048)
    for start in range(0, 2048, 256):
        some = slice(start, start + 256)
        take_in = stream.append if start or first == "append" else stream.prefill
        take_in(key[:, :, some], value[:, :, some], groups[:, some])
        assert stream.memory() < 1.4 * 2 * key.numel() * 4
