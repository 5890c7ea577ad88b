"""What must not matter: the future, by a single bit; padding, packing and batch neighbours; the size of chunks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_kernels import KeyBuckets, attend_chunk, focus_attention

from .cases import Case, random_groups

pytestmark = pytest.mark.usefixtures("two_threads")
ENGINES = ["cpu:sorted", "cpu:chunked", "eager:sorted", "eager:chunked"]


def with_other_future(case: Case, start: int, seed: int = 7) -> list[torch.Tensor]:
    """The case's tensors and groups, all redrawn from `start` on."""
    g = torch.Generator().manual_seed(seed)
    changed = []
    for x in (case.query, case.key, case.value):
        x = x.clone()
        x[:, :, start:] = torch.randn(x[:, :, start:].shape, generator=g, dtype=x.dtype)
        changed.append(x)
    ids = case.ids.clone()
    ids[:, start:] = random_groups(case.batch, case.tokens - start, case.top_k, case.num_groups, g)
    return [*changed, ids]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=["fp32", "bf16", "fp64"])
@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize("tokens", [130, 700, 3000])
def test_the_future_changes_no_bit(backend: str, tokens: int, dtype: torch.dtype) -> None:
    case = Case(tokens=tokens, window=16, num_groups=2, heads=(3, 1), size=24)
    before = case.focus(backend, dtype)
    for start in (tokens // 5, tokens // 2, tokens - 40, tokens - 1):
        *tensors, ids = with_other_future(case, start)
        after = focus_attention(*(x.to(dtype) for x in tensors), ids, backend=backend, return_lse=True, **case.options)
        for x, y in zip(before, after, strict=True):
            assert torch.equal(x[:, :, :start], y[:, :, :start])


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(2, 900),
    window=st.integers(0, 50),
    num_groups=st.integers(1, 6),
    data=st.data(),
)
def test_the_future_changes_no_bit_for_any_k(tokens: int, window: int, num_groups: int, data: st.DataObject) -> None:
    case = Case(
        tokens=tokens,
        window=window,
        sinks=min(window, 4),
        num_groups=num_groups,
        top_k=data.draw(st.integers(1, num_groups)),
        match=data.draw(st.sampled_from(["probe", "share"])),
        heads=(1, 1),
        temperature=data.draw(st.sampled_from([None, 0.7])),
    )
    start = data.draw(st.integers(0, tokens - 1))
    before = case.focus("cpu", torch.float32)[0]
    *tensors, ids = with_other_future(case, start)
    after = focus_attention(*(x.float() for x in tensors), ids, backend="cpu", **case.options)
    assert torch.equal(before[:, :, :start], after[:, :, :start])


def test_how_full_a_tile_becomes_changes_no_bit() -> None:
    """Of 192 rows for three heads that share keys, two thirds are computed folded, and all of them as they are."""
    case = Case(tokens=1024, window=128, num_groups=8, heads=(9, 3), size=64, temperature=0.97)
    found = []
    for more in (10, 90):  # of the future, in a group that has about 64 tokens before
        *tensors, ids = with_other_future(case, 512)
        ids[:, 512:] = 0
        ids[:, 520 : 520 + more] = 4
        found.append(focus_attention(*(x.float() for x in tensors), ids, backend="cpu:chunked", **case.options))
    assert torch.equal(found[0][:, :, :512], found[1][:, :, :512])


@pytest.mark.parametrize("chunks", [[256, 256, 188], [1] * 50 + [650], [33] * 21 + [7]], ids=["256", "1", "33"])
def test_the_future_of_a_chunk_changes_no_bit(chunks: list[int]) -> None:
    case = Case(tokens=700, window=16, num_groups=3, top_k=2, heads=(1, 1))

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return stream(q.float(), k.float(), v.float(), ids, chunks, case)

    before = run(*case.tensors(), case.ids)
    for start in (100, 401, 660):
        assert torch.equal(before[:, :, :start], run(*with_other_future(case, start))[:, :, :start])


def stream(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ids: torch.Tensor, chunks: list[int], case: Case
) -> torch.Tensor:
    buckets = KeyBuckets(num_groups=case.num_groups, window=case.window, sinks=case.sinks, match=case.match)
    names = ("temperature", "temperature_scope", "softcap", "sink_logits")
    options = {name: case.options[name] for name in names}
    mask = case.options["padding_mask"]
    outs, start = [], 0
    for count in chunks:
        part = slice(start, start + count)
        buckets.append(k[:, :, part], v[:, :, part], ids[:, part], None if mask is None else mask[:, part])
        outs.append(attend_chunk(q[:, :, part], buckets, **options))
        start += count
    assert start == q.shape[2]
    return torch.cat(outs, 2)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), tokens=st.integers(1, 260), window=st.integers(0, 30), num_groups=st.integers(1, 6))
def test_any_chunks_give_the_whole(data: st.DataObject, tokens: int, window: int, num_groups: int) -> None:
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
        softcap=data.draw(st.sampled_from([None, 3.0])),
        learned_sinks=data.draw(st.booleans()),
        padding=data.draw(st.sampled_from(["none", "left", "right", "ragged"])),
    )
    chunks: list[int] = []
    while sum(chunks) < tokens:
        chunks.append(min(data.draw(st.sampled_from([1, 1, 2, 7, 40, 150])), tokens - sum(chunks)))
    want, _ = case.reference()
    torch.testing.assert_close(stream(*case.tensors(), case.ids, chunks, case), want, atol=1e-12, rtol=0)


@pytest.mark.parametrize("chunk", [1024, 333])
def test_long_chunks_give_the_whole(chunk: int) -> None:
    case = Case(tokens=4500, window=64, heads=(2, 1), num_groups=3)
    chunks = [chunk] * (4500 // chunk) + [4500 % chunk]
    got = stream(*case.tensors(), case.ids, chunks, case)
    for engine in ("cpu:sorted", "cpu:chunked"):
        torch.testing.assert_close(got, case.focus(engine)[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize("padding", ["left", "right", "ragged"])
def test_padding_and_neighbours_change_nothing(backend: str, padding: str) -> None:
    case = Case(tokens=90, batch=3, padding=padding)
    out, _ = case.focus(backend)
    for row in range(3):
        real = case.mask[row]
        q, k, v = (x[row : row + 1, :, real] for x in case.tensors())
        options = {**case.options, "padding_mask": None}
        alone = focus_attention(q, k, v, case.ids[row : row + 1, real], backend=backend, **options)
        torch.testing.assert_close(out[row : row + 1, :, real], alone, atol=1e-13, rtol=0)


@pytest.mark.parametrize("backend", ENGINES)
def test_packed_documents_are_apart(backend: str) -> None:
    """Also interleaved ones: a document is an id, wherever its tokens stand."""
    case = Case(tokens=120)
    q, k, v = case.tensors()
    for ids in (torch.arange(120) // 50, torch.arange(120) % 3):
        options = {**case.options, "sequence_ids": ids[None]}
        out = focus_attention(q, k, v, case.ids, backend=backend, **options)
        for document in ids.unique().tolist():
            mine = ids == document
            part = [x[:, :, mine] for x in (q, k, v)]
            alone = focus_attention(*part, case.ids[:, mine], backend=backend, **case.options)
            torch.testing.assert_close(out[:, :, mine], alone, atol=1e-13, rtol=0)


def test_group_numbers_are_only_names() -> None:
    case = Case(tokens=300, num_groups=6, top_k=2, match="share")
    renamed = torch.randperm(6, generator=torch.Generator().manual_seed(3))[case.ids]
    got = focus_attention(*case.tensors(), renamed, **case.options)
    torch.testing.assert_close(got, case.focus("auto")[0], atol=1e-12, rtol=0)
