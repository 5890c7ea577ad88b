"""Several numbers, each under a name, in running text; one is asked for by its name: RULER's niah_multikey_1."""

from __future__ import annotations

from random import Random

from .haystack import fill, hide, somewhere
from .item import Item, Setting, room
from .words import ADJECTIVES, NOUNS

NEEDLES = 4
DIGITS = 7


def needle(setting: Setting, length: int, depth: float, random: Random) -> Item:
    """The one that is asked for lies at `depth`, the others anywhere; all are of one form."""
    names = [f"{a}-{n}" for a, n in zip(random.sample(ADJECTIVES, NEEDLES), random.sample(NOUNS, NEEDLES), strict=True)]
    values = [str(random.randint(10 ** (DIGITS - 1), 10**DIGITS - 1)) for _ in names]
    needles = [
        setting.encode(f" One of the special magic numbers for {x} is: {v}.")
        for x, v in zip(names, values, strict=True)
    ]
    head = setting.opening() + setting.encode(
        "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about "
        "the number afterwards.\n"
    )
    tail = setting.encode(
        f"\nWhat is the special magic number for {names[0]} mentioned in the provided text? The special magic number "
        f"for {names[0]} mentioned in the provided text is:"
    )
    answer = setting.encode(f" {values[0]}")
    count = room(length, sum(map(len, (head, *needles, tail, answer))), setting.apart + 1, "a needle item")
    filler = fill(setting, setting.sentences, count, somewhere(setting.sentences, count, random))
    depths = [depth, *(random.random() for _ in names[1:])]
    return Item(head + hide(filler, list(zip(depths, needles, strict=True)), setting.apart) + tail, answer)
