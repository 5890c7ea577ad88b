"""The CUDA backends on a real device: `pytest -m gpu`."""

from __future__ import annotations

import pytest
import torch

from focus_kernels import KeyBuckets, attend_chunk, available_backends, focus_attention, reference_attention

from .cases import Case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CASES = {
    "sorted": (Case(tokens=3000, window=64, size=64, num_groups=8), "sorted"),
    "share 2": (Case(tokens=3000, window=64, size=64, num_groups=4, top_k=2, match="share"), "sorted"),
    "probe 2": (Case(tokens=3000, window=64, size=64, num_groups=8, top_k=2, temperature="heads"), "chunked"),
    "head of 256": (Case(tokens=1000, window=64, size=256, heads=(2, 1)), "chunked"),
    "padding, packing": (Case(tokens=500, batch=3, padding="ragged", documents=3, top_k=2), "chunked"),
    "learned sinks": (Case(tokens=500, learned_sinks=True, heads=(8, 1)), "sorted"),
}


def on_device(case: Case, dtype: torch.dtype) -> tuple[list[torch.Tensor], dict]:
    options = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in case.options.items()}
    return [*(x.to("cuda", dtype) for x in case.tensors()), case.ids.cuda()], options


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["flash_attn", "torch_varlen", "flex", "eager"])
def test_forward_and_backward(backend: str, name: str, dtype: torch.dtype) -> None:
    if backend not in available_backends():
        pytest.skip(f"{backend} is not available")
    case, engine = CASES[name]
    choice = backend if backend == "flex" else f"{backend}:{engine}"

    def run(attend, tensors: list[torch.Tensor], options: dict, **more) -> list[torch.Tensor]:
        leaves = [x.requires_grad_() for x in tensors[:3]]
        out = attend(*leaves, tensors[3], **options, **more)
        return [out, *torch.autograd.grad(out.float().square().sum(), leaves)]

    tensors, options = on_device(case, dtype)
    exact = [x.detach().double() for x in tensors[:3]]
    want = run(reference_attention, [*exact, tensors[3]], options)
    dense = run(reference_attention, [*(x.detach() for x in tensors[:3]), tensors[3]], options)
    got = run(focus_attention, [*(x.detach() for x in tensors[:3]), tensors[3]], options, backend=choice)
    for mine, plain, true in zip(got, dense, want, strict=True):
        assert float((mine.double() - true).abs().max()) <= 2 * float((plain.double() - true).abs().max())


@pytest.mark.parametrize("backend", ["flash_attn", "torch_varlen", "eager"])
def test_stream(backend: str) -> None:
    if backend not in available_backends():
        pytest.skip(f"{backend} is not available")
    case = Case(tokens=700, window=32, top_k=2, size=64)
    (q, k, v, ids), _ = on_device(case, torch.float16)
    stream = KeyBuckets(num_groups=4, window=32)
    outs, start = [], 0
    for count in [300, 1, 1, 98, 300]:
        part = slice(start, start + count)
        stream.append(k[:, :, part], v[:, :, part], ids[:, part])
        outs.append(attend_chunk(q[:, :, part], stream, backend=backend))
        start += count
    torch.testing.assert_close(torch.cat(outs, 2).double().cpu(), case.reference(torch.float16)[0], atol=4e-3, rtol=0)
