"""Texts that commands are given: files, what comes along by name, or standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from focus_kernels import FocusError

from ..evaluation.texts import comes_along, split
from ..training.data import load_texts


def read_texts(source: str, **load: Any) -> Iterable[str]:
    """Documents of a source; of a text that comes along, its held-out part; '-' is standard input. Commands ask for
    them before they load a model: a mistake shows at once."""
    if source == "-":
        return [sys.stdin.read()]
    if comes_along(source):
        return split(source)[1]
    return load_texts(source, **load)


def first_window(texts: Iterable[str], source: str, tokenizer: Any, length: int) -> Tensor:
    """The first tokens [length] of a source's running text, or what there is."""
    ids: list[int] = []
    for text in texts:
        ids += tokenizer(text, verbose=False).input_ids
        if len(ids) >= length:
            break
    if not ids:
        raise FocusError(f"the text {source!r} is empty")
    return torch.tensor(ids[:length])
