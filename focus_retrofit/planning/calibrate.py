"""The rates of the machine at hand, measured in a few seconds."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from .costs import Rates

SECONDS = 1.5  # for each rate


def measure_rates(dtype: torch.dtype = torch.float32, device: str = "cpu", seconds: float = SECONDS) -> Rates:
    """Matrix products as of a prefill, causal FlashAttention of one long call, a large copy, and a tiny operation."""
    size, tokens, heads, width = 1024, 4096, 4, 64
    matrix = torch.randn(size, size, dtype=dtype, device=device)
    query = torch.randn(1, heads, tokens, width, dtype=dtype, device=device)
    block = torch.zeros(2**25, dtype=torch.float32, device=device)  # 128 MB: more than caches hold
    other, tiny = torch.empty_like(block), torch.zeros(8, device=device)
    attend = torch.nn.functional.scaled_dot_product_attention
    with torch.inference_mode():
        matmul = _best(lambda: matrix @ matrix, seconds, device)
        flash = _best(lambda: attend(query, query, query, is_causal=True), seconds, device)
        copy = _best(lambda: other.copy_(block), seconds, device)
        call = _best(lambda: tiny.add_(1), seconds / 10, device)
    pairs = tokens * (tokens + 1) / 2
    return Rates(2 * size**3 / matmul, 4 * heads * width * pairs / flash, 2 * 4 * block.numel() / copy, call)


def _best(run: Callable[[], object], seconds: float, device: str) -> float:
    """Of as many runs as there is time for, after one to warm up."""
    found = float("inf")
    run()
    end = perf_counter() + seconds
    while perf_counter() < end or found == float("inf"):
        start = perf_counter()
        run()
        if device != "cpu":
            torch.cuda.synchronize()
        found = min(found, perf_counter() - start)
    return found
