"""A small model, a tokenizer of letters and a text with something to learn: enough for every path of training."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import torch

from focus_retrofit import FocusConfig, retrofit
from focus_retrofit.training import Stream, Windows
from tests.matrix import BY_NAME

CONFIG = FocusConfig(num_groups=4, top_k=1, window=8, sinks=2, temperature="learned")


class LetterTokenizer:
    """One token per letter, and an end of text."""

    eos_token_id = 0

    def __call__(self, text, **options):
        return SimpleNamespace(input_ids=[1 + (ord(letter) - ord("a")) % 26 for letter in text])

    def save_pretrained(self, folder):
        pass


def texts(count=12, length=150):
    """Letters in which a far one is told by a near one: documents repeat their first letters."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(count):
        part = "".join(chr(97 + int(n)) for n in torch.randint(0, 26, (29,), generator=generator))
        found.append((part * (length // 29 + 1))[:length])
    return found


def windows(length=48, **options):
    return Windows(Stream(texts(**options), LetterTokenizer(), length))


def model(family="Llama", seed=0, **changes):
    return retrofit(BY_NAME[family].make(seed=seed), FocusConfig(**{**CONFIG.to_dict(), **changes}))


def leave():
    """Ends one of several processes at once: while an interpreter waits for gloo's threads to end, these may wait for
    the interpreter."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def batches(count=6, size=2, **options):
    """Windows in batches, as they go into a model."""
    data = windows(**options)
    return [{name: torch.stack([data[2 * n + i][name] for i in range(size)]) for name in data[0]} for n in range(count)]
