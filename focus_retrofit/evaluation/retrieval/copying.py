"""Random tokens said twice: the second time can be predicted, but only from the first."""

from __future__ import annotations

from random import Random

from .induction import vocabulary
from .item import Item, Setting, room

SCORED = 128  # tokens at the end of the second time: more logits than that tell little more


def copying(setting: Setting, length: int, depth: float, random: Random) -> Item:
    """Half of the tokens, then the same again; the last of them are the answer."""
    head = setting.opening()
    count = room(length, len(head), 2 * max(setting.apart, 4), "a copying item")
    tokens = vocabulary(setting)
    # an odd number of tokens leaves one over: it comes first
    once = random.choices(tokens, k=count // 2)
    over = random.choices(tokens, k=count % 2)
    scored = min(SCORED, len(once) // 2)
    return Item([*head, *over, *once, *once[:-scored]], once[-scored:])
