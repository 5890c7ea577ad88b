"""Real text for a benchmark, from Python's own library: nothing to download."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from focus_kernels import FocusError


def sample_ids(tokenizer: Any, tokens: int) -> Tensor:
    """[1, tokens] of the Python language reference, from its beginning again where it is too short."""
    from pydoc_data.topics import topics

    if tokens < 1:
        raise FocusError(f"tokens is {tokens}; it must be at least 1")
    text = "\n\n".join(topics.values())
    ids = torch.tensor(tokenizer(text[: 16 * tokens + 64]).input_ids)
    if ids.numel() < min(tokens, len(text) // 16):  # long tokens
        ids = torch.tensor(tokenizer(text).input_ids)
    if not ids.numel():
        raise FocusError("the tokenizer gave no tokens for a text in English: is it the model's?")
    return ids.repeat(-(-tokens // ids.numel()))[None, :tokens]
