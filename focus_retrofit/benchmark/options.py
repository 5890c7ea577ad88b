"""What to measure, as checked options; imports nothing heavy, so that a command line can list them at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from focus_kernels.errors import FocusError

from ..config import option

PARTS = ("kernel", "prefill", "decode", "training")


@dataclass
class BenchConfig:
    """The choices of a benchmark; checked when made."""

    parts: str = option(
        "kernel,prefill,decode", "what to time: kernel (one attention layer), prefill, decode, training"
    )
    lengths: str = option("1K,2K,4K,8K", "tokens, comma separated; K and M are 1024 and 1024^2")
    repeats: int = option(3, "best of this many, in turn; more of short lengths")
    new_tokens: int = option(32, "tokens decoded after each prompt")
    memory: bool = option(True, "also measure memory (one more run of each side)")

    def __post_init__(self) -> None:
        for part in self.chosen_parts():
            if part not in PARTS:
                raise FocusError(f"parts names {part!r}; choose among {', '.join(PARTS)}")
        parse_lengths(self.lengths)
        for name, least in (("repeats", 1), ("new_tokens", 2)):  # the first token of a turn is not timed
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise FocusError(f"{name} is {value!r}; it must be a whole number, at least {least}")

    def chosen_parts(self) -> list[str]:
        return [part.strip() for part in self.parts.split(",")]


def parse_tokens(text: str, least: int = 1) -> int:
    """'4096', '4K' or '1M' -> a number of tokens."""
    match = re.fullmatch(r"\s*(\d+)([KM]?)\s*", text, re.IGNORECASE)
    tokens = int(match[1]) * {"": 1, "K": 1024, "M": 1024**2}[match[2].upper()] if match else 0
    if tokens < least:
        raise FocusError(f"{text!r} is no number of tokens, at least {least}; write 1024, 4K or 1M")
    return tokens


def parse_lengths(lengths: str | Iterable[int]) -> list[int]:
    """'1K,4096' or numbers -> increasing numbers of tokens."""
    items = lengths.split(",") if isinstance(lengths, str) else lengths
    try:
        found = sorted({parse_tokens(str(item), 2) for item in items})
    except FocusError as wrong:
        raise FocusError(f"lengths: {wrong}") from None
    if not found:
        raise FocusError("no lengths were given; write for example 1K,4K")
    return found
