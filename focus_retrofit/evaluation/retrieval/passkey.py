"""A number said once in text that says nothing, asked for at the end."""

from __future__ import annotations

from random import Random

from .haystack import fill, hide
from .item import Item, Setting, room

FILLER = (
    "The river runs past the mill.",
    "The road goes up the hill.",
    "Clouds come and go over the fields.",
    "Birds sit on the old fence.",
    "The day is long and nothing happens.",
)


def passkey(setting: Setting, length: int, depth: float, random: Random) -> Item:
    """Five digits between sentences that come again and again."""
    key = str(random.randint(10_000, 99_999))
    head = setting.opening() + setting.encode("There is a pass key hidden in the text below. Remember it.\n")
    needle = setting.encode(f" The pass key is {key}.")
    tail = setting.encode("\n\nWhat is the pass key? The pass key is")
    answer = setting.encode(f" {key}")
    count = room(length, sum(map(len, (head, needle, tail, answer))), setting.apart + 1, "a passkey item")
    filler = fill(setting, FILLER * count, count, start=random.randrange(len(FILLER)))
    return Item(head + hide(filler, [(depth, needle)], setting.apart) + tail, answer)
