"""A wrong answer has no speed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from focus_kernels.bench import methods
from focus_retrofit import FocusConfig, FocusError, hard
from focus_retrofit.benchmark import bench_decode, bench_kernel, bench_prefill, check_model, sample_ids
from focus_retrofit.benchmark.gate import TOLERANCE, compare_logits, gate_length
from tests.matrix import BY_NAME

from .conftest import small


def prefill(model: Any, tokenizer: Any) -> None:
    bench_prefill(model, tokenizer, [64], repeats=1, memory=False, progress=False)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_right_model_passes(dtype: torch.dtype, tokenizer: Any) -> None:
    model = small().to(dtype)
    error = check_model(model, sample_ids(tokenizer, gate_length(model)))
    assert 0 <= error <= TOLERANCE[dtype]


def test_a_wrong_prefill_has_no_speed(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that is one token short."""
    right = hard.focus_attention

    def wrong(*args: Any, window: int, backend: str, **options: Any) -> Any:
        return right(*args, window=window - (backend != "reference"), backend=backend, **options)

    monkeypatch.setattr(hard, "focus_attention", wrong)
    with pytest.raises(FocusError, match="no speed is reported: the logits of prefill"):
        prefill(model, tokenizer)
    assert model.focus.backend == "auto" and model.focus.watch is None


def test_a_wrong_decoding_has_no_speed(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = hard.attend_chunk
    monkeypatch.setattr(hard, "attend_chunk", lambda *args, **options: right(*args, **options) * 1.05)
    prefill(model, tokenizer)
    with pytest.raises(FocusError, match="no speed is reported: the logits of decoding"):
        bench_decode(model, tokenizer, [64], 2, repeats=1, progress=False)


def test_other_routes_have_no_speed(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties may go either way, but not all tokens."""
    router = model.focus.router(0)
    right = type(router).groups

    def other(self: Any, logits: Any) -> Any:
        return right(self, logits if model.focus.backend == "reference" else -logits)

    monkeypatch.setattr(type(router), "groups", other)
    with pytest.raises(FocusError, match="are routed as in the dense reference"):
        prefill(model, tokenizer)


def test_a_wrong_kernel_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = methods.focus
    monkeypatch.setattr(methods, "focus", lambda layer, backend: right(layer, backend) + 1e-3)
    with pytest.raises(FocusError, match="no speed is reported: focus auto at 64 tokens"):
        bench_kernel([64], FocusConfig(window=8), (2, 1), 16, repeats=1, progress=False)


def test_nothing_but_numbers_is_wrong() -> None:
    want = torch.randn(4, 9)
    with pytest.raises(FocusError, match="differ"):
        compare_logits(want * float("nan"), want, "something")


def test_models_that_are_not_served_are_refused(tokenizer: Any) -> None:
    with pytest.raises(FocusError, match="not retrofitted"):
        prefill(BY_NAME["Llama"].make(), tokenizer)
    model = small()
    model.focus.mode = "soft"
    with pytest.raises(FocusError, match="measured as served"):
        prefill(model, tokenizer)
    model.focus.mode = "hard"
    with pytest.raises(FocusError, match="measured as served"):
        prefill(model.train(), tokenizer)
