"""The CUDA backends' whole code path, on emulated kernels that refuse what the real ones refuse."""

from __future__ import annotations

import pytest
import torch

from focus_kernels import (
    BackendError,
    KeyBuckets,
    attend_chunk,
    available_backends,
    focus_attention,
    gated_attention,
)
from focus_kernels.backends import load, varlen_limits
from tests.emulators import flash_attn2, flash_attn3
from tests.emulators import torch_varlen as emulated_torch

from .cases import Case, check
from .test_gated import drawn

KERNELS = ["fa2", "fa3", "fa3-2.8.3", "torch"]


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list]:
    """(backend name, calls made) with the kernels of one library in place."""
    monkeypatch.setattr(varlen_limits, "device_types", ("cuda", "cpu"))
    if request.param == "torch":
        emulated_torch.install(monkeypatch)
        monkeypatch.setattr(load("torch_varlen"), "unavailable", lambda: None)
        return "torch_varlen", emulated_torch.calls
    load("flash_attn")._runner.cache_clear()
    if request.param == "fa2":
        flash_attn2.install(monkeypatch)
        return "flash_attn", flash_attn2.calls
    flash_attn3.install(monkeypatch, v283_backward=request.param != "fa3")
    return "flash_attn", flash_attn3.calls


CASES = {
    "sorted": (Case(), "sorted"),
    "sorted, temperature for all": (Case(temperature=0.7, temperature_scope="all"), "sorted"),
    "sorted, share": (Case(top_k=2, match="share"), "sorted"),
    "sorted, share 3 of 5, batch, padding": (
        Case(num_groups=5, top_k=3, match="share", batch=2, padding="ragged"),
        "sorted",
    ),
    "sorted, packed": (Case(documents=3, batch=2), "sorted"),
    "chunked": (Case(), "chunked"),
    "chunked, no sinks, no window": (Case(window=0, sinks=0), "chunked"),
    "probe 2": (Case(top_k=2), "chunked"),
    "probe 3, distant temperature per head": (Case(top_k=3, temperature="heads"), "chunked"),
    "share 2, distant temperature": (Case(top_k=2, match="share", temperature=0.6), "chunked"),
    "share of many sets": (Case(num_groups=12, top_k=3, match="share", temperature=0.6), "chunked"),
    "learned sinks, left padding": (Case(top_k=2, batch=2, padding="left", learned_sinks=True), "chunked"),
    "value of another size": (Case(value_size=8), "chunked"),
    "head of 256": (Case(size=256, heads=(2, 1), tokens=60), "chunked"),
    "all local": (Case(tokens=9), "chunked"),
    "one token": (Case(tokens=1), "sorted"),
    "mixed lengths": (Case(documents=9, batch=2, top_k=2), "chunked"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_agrees_with_the_oracle(kernel: tuple[str, list], name: str, dtype: torch.dtype) -> None:
    case, engine = CASES[name]
    check(case, f"{kernel[0]}:{engine}", dtype)
    assert kernel[1], "the kernel was never called"


@pytest.mark.parametrize("chunk", [8, 32])
def test_many_chunks(kernel: tuple[str, list], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from focus_kernels import varlen

    monkeypatch.setattr(varlen, "CHUNK", chunk)
    monkeypatch.setattr(varlen, "RAGGED_CHUNK", chunk)
    for case in (Case(tokens=201, top_k=2, batch=2, padding="ragged"), Case(tokens=150, heads=(2, 1), size=256)):
        check(case, f"{kernel[0]}:chunked", torch.float16)


def test_two_calls_for_one_group_per_token(kernel: tuple[str, list]) -> None:
    Case(tokens=300, num_groups=8).focus(f"{kernel[0]}:sorted", torch.float16)
    assert len(kernel[1]) == 2


def test_softcap(kernel: tuple[str, list]) -> None:
    case = Case(softcap=5.0, top_k=2)
    if kernel[0] == "torch_varlen":
        with pytest.raises(BackendError, match=r"no softcap \(5.0"):
            case.focus(kernel[0], torch.float16)
    else:
        check(case, kernel[0], torch.float16)
        with pytest.raises(BackendError, match=r"softcap=5.0; these would: flash_attn"):
            Case(softcap=5.0).focus(f"{kernel[0]}:sorted", torch.float16)


def test_refuses_what_it_cannot_do(kernel: tuple[str, list]) -> None:
    with pytest.raises(BackendError, match=r"not torch.float32; these would: .*cpu"):
        Case().focus(kernel[0], torch.float32)
    with pytest.raises(BackendError, match=r"head size 264 is above its limit of 256"):
        Case(size=260).focus(kernel[0], torch.float16)
    with pytest.raises(BackendError, match=r"head size 256 and 4 penalty columns"):
        Case(size=256).focus(f"{kernel[0]}:sorted", torch.float16)


GRADIENTS = {
    "sorted": (Case(tokens=60, temperature=0.8, temperature_scope="all"), "sorted"),
    "sorted, share": (Case(tokens=60, top_k=2, match="share"), "sorted"),
    "probe 2": (Case(tokens=60, top_k=2, temperature="heads", learned_sinks=True), "chunked"),
    "head of 256": (Case(tokens=40, top_k=2, heads=(2, 1), size=256), "chunked"),
    "padding, packing": (Case(tokens=60, top_k=2, batch=2, padding="ragged", documents=2), "chunked"),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(kernel: tuple[str, list], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from focus_kernels import reference_attention, varlen

    monkeypatch.setattr(varlen, "CHUNK", 16)
    case, engine = GRADIENTS[name]

    def gradients(dtype: torch.dtype, attend, **more) -> list[torch.Tensor]:
        leaves = [x.half().to(dtype).requires_grad_() for x in case.tensors()]
        options = dict(case.options)
        for option in ("temperature", "sink_logits"):
            if options[option] is not None:
                leaf = torch.as_tensor(options[option], dtype=torch.float64).requires_grad_()
                leaves.append(leaf)
                options[option] = leaf
        out, lse = attend(*leaves[:3], case.ids, return_lse=True, **options, **more)
        g = torch.Generator().manual_seed(1)
        weight, weight_lse = (torch.randn(x.shape, generator=g, dtype=torch.float64).half() for x in (out, lse))
        real = case.mask[:, None].expand_as(lse)
        ((out * weight.to(out.dtype)).sum() + (lse * weight_lse.to(lse.dtype))[real].sum()).backward()
        return [leaf.grad.double() for leaf in leaves]

    got = gradients(torch.float16, focus_attention, backend=f"{kernel[0]}:{engine}")
    want = gradients(torch.float64, reference_attention)
    for mine, true in zip(got, want, strict=True):
        torch.testing.assert_close(mine, true, atol=2e-2 * float(true.abs().max()), rtol=0)


@pytest.mark.parametrize("chunks", [[1] * 40, [30, 1, 1, 8], [7] * 5 + [5], [40]], ids=str)
@pytest.mark.parametrize("name", ["probe 2", "share 2", "head of 256", "padding"])
def test_stream(kernel: tuple[str, list], chunks: list[int], name: str) -> None:
    case = {
        "probe 2": Case(tokens=40, window=5, top_k=2, temperature="heads", batch=2),
        "share 2": Case(tokens=40, window=5, top_k=2, match="share"),
        "head of 256": Case(tokens=40, window=5, heads=(2, 1), size=256, learned_sinks=True),
        "padding": Case(tokens=40, window=5, padding="ragged", batch=2, value_size=8),
    }[name]
    q, k, v = case.tensors(torch.float16)
    stream = KeyBuckets(num_groups=4, window=5, sinks=4, match=case.match, page=256)
    options = {name: case.options[name] for name in ("temperature", "sink_logits")}
    outs, start = [], 0
    for count in chunks:
        part = slice(start, start + count)
        stream.append(k[:, :, part], v[:, :, part], case.ids[:, part], case.mask[:, part])
        outs.append(attend_chunk(q[:, :, part], stream, backend=kernel[0], **options))
        start += count
    want, _ = case.reference(torch.float16)
    torch.testing.assert_close(torch.cat(outs, 2).double(), want, atol=4e-3, rtol=0)


@pytest.mark.parametrize("match", ["probe", "share"])
def test_edited_stream(kernel: tuple[str, list], match: str) -> None:
    """Prefilled, cropped, rows repeated, then a chunk and single tokens; at the end into all groups."""
    case = Case(tokens=40, window=5, top_k=2, match=match, batch=2)
    q, k, v = case.tensors(torch.float16)
    stream = KeyBuckets(num_groups=4, window=5, sinks=4, match=match, page=256)
    stream.prefill(k[:, :, :30], v[:, :, :30], case.ids[:, :30])
    stream.crop([10, 10])
    stream.select_rows([1, 0, 1])
    want, _ = case.reference(torch.float16)
    q, k, v, ids, want = (x[[1, 0, 1]] for x in (q, k, v, case.ids, want))
    for start, stop in ((20, 38), (38, 39), (39, 40)):
        part = slice(start, stop)
        stream.append(k[:, :, part], v[:, :, part], ids[:, part])
        got = attend_chunk(q[:, :, part], stream, backend=kernel[0])
        torch.testing.assert_close(got.double(), want[:, :, part], atol=4e-3, rtol=0)
    stream.crop([20, 20, 20])
    stream.append(k[:, :, 20:], v[:, :, 20:], ids[:, 20:])
    everything = torch.arange(4).expand(3, 20, -1)
    got = attend_chunk(q[:, :, 20:], stream, query_groups=everything, backend=kernel[0])
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(got, dense[:, :, 20:], atol=4e-3, rtol=0)
    one = everything[..., 2:3]
    got = attend_chunk(q[:, :, 20:], stream, query_groups=one, backend=kernel[0])
    plain = attend_chunk(q[:, :, 20:], stream, query_groups=one, backend="eager")
    torch.testing.assert_close(got, plain, atol=4e-3, rtol=0)
    assert float((got - dense[:, :, 20:]).abs().max()) > 0.01


def test_nothing_but_padding(kernel: tuple[str, list]) -> None:
    case = Case(tokens=12)
    q, k, v = (x.requires_grad_() for x in case.tensors(torch.float16))
    options = {**case.options, "padding_mask": torch.zeros(1, 12, dtype=torch.bool)}
    out = focus_attention(q, k, v, case.ids, backend=kernel[0], **options)
    out.sum().backward()
    assert (out == 0).all()
    assert (q.grad == 0).all()


def test_named_as_available(kernel: tuple[str, list]) -> None:
    assert kernel[0] in available_backends()


@pytest.mark.parametrize("explored", [1, 2, 4])
@pytest.mark.parametrize(
    "case",
    [Case(), Case(batch=2, padding="ragged", temperature="heads"), Case(documents=3, top_k=1, learned_sinks=True)],
    ids=["plain", "padded, temperatures", "packed, learned sinks"],
)
def test_gradients_of_the_grouping(kernel: tuple[str, list], case: Case, explored: int) -> None:
    """In half precision, against the CPU's in float64."""
    soft, groups = drawn(case, explored)
    found = []
    for dtype, backend in ((torch.float16, kernel[0]), (torch.float64, "cpu")):
        leaf = soft.to(torch.float32 if dtype == torch.float16 else dtype).requires_grad_()
        out = gated_attention(*case.tensors(dtype), case.ids, leaf, explored=groups, backend=backend, **case.options)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        (out * weight.to(out.dtype)).sum().backward()
        found.append(leaf.grad.double())
    assert kernel[1], "the kernel was never called"
    assert (found[0] - found[1]).abs().max() < 2e-2 * max(float(found[1].abs().max()), 1.0)
