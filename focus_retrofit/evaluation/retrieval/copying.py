"""Random tokens said twice: the second time can be predicted, but only from the first."""

from __future__ import annotations

from random import Random

from .induction import vocabulary
from .item import Item, Setting, room

SCORED = 128  # tokens at the end of the second time: more logits than that tell little more


def copying(setting: Setting, length: int, depth: float, random: Random) -> Item:
    """Half of the tokens, then the same again; the last of them are the answer. They come again after an odd number of
    tokens, so that groups by position modulo an even number do not find them by chance."""
    head = setting.opening()
    count = room(length, len(head), 2 * max(setting.apart, 4) + 2, "a copying item")
    tokens = vocabulary(setting)
    half = (count // 2 - 1) // 2 * 2 + 1
    once = random.choices(tokens, k=half)
    over = random.choices(tokens, k=count - 2 * half)  # what is left over comes first
    scored = min(SCORED, len(once) // 2)
    return Item([*head, *over, *once, *once[:-scored]], once[-scored:])
