"""One small retrofitted model, and everything measured on it once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from focus_retrofit import FocusConfig, retrofit
from focus_retrofit.benchmark import BenchConfig, run_bench
from tests.matrix import BY_NAME
from tests.training.tiny import LetterTokenizer

CONFIG = FocusConfig(num_groups=4, top_k=1, window=8, sinks=2)


def small(family: str = "Llama", **options: Any) -> Any:
    return retrofit(BY_NAME[family].make(dtype=torch.float32, **options), CONFIG)


@pytest.fixture
def model() -> Any:
    return small()


@pytest.fixture
def tokenizer() -> LetterTokenizer:
    return LetterTokenizer()


@pytest.fixture(scope="session")
def rows() -> list[dict[str, Any]]:
    options = BenchConfig(lengths="64,600", repeats=1, new_tokens=3)
    return run_bench(small(), LetterTokenizer(), options, progress=False)
