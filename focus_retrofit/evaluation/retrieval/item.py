"""One question to a model: what it reads, what it must say next, and what else it might."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from focus_kernels import FocusError


@dataclass(frozen=True)
class Item:
    """Tokens of prompt and answer. `candidates`: single tokens of which the answer is one."""

    prompt: list[int]
    answer: list[int]
    candidates: tuple[int, ...] = ()

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.answer


@dataclass(frozen=True)
class Setting:
    """What items are made of. `apart`: tokens between what is asked for and the question, at least; with a model's
    window there, no answer can be had from the window alone."""

    tokenizer: Any
    sentences: Sequence[str] = ()  # of the haystack
    apart: int = 0

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    def opening(self) -> list[int]:
        """What the tokenizer puts before every text."""
        return list(self.tokenizer("", verbose=False).input_ids)


@dataclass(frozen=True)
class Task:
    """How items are made: (setting, length, depth, random) -> an item of `length` tokens, the answer's included."""

    make: Callable[[Setting, int, float, Random], Item]
    about: str
    deep: bool = True  # asks at a depth; otherwise depth means nothing
    haystack: bool = False  # hides in a text
    score: str = "exact"  # 'exact': the whole answer; 'tokens': its share; 'choice': best of the candidates


def room(length: int, taken: int, least: int, what: str) -> int:
    """Tokens left to fill, or why there are too few."""
    if length - taken < least:
        raise FocusError(f"{what} of {length} tokens is too short: it takes {taken + least}; ask for longer ones")
    return length - taken
