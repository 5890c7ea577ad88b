"""Random tokens in which the last few came before: what followed them there follows again."""

from __future__ import annotations

from random import Random

from .item import Item, Setting, room

CUE = 4  # tokens that come again


def vocabulary(setting: Setting) -> list[int]:
    """Tokens to draw from: all that are not special."""
    special = set(getattr(setting.tokenizer, "all_special_ids", ()))
    return [token for token in range(len(setting.tokenizer)) if token not in special]


def induction(setting: Setting, length: int, depth: float, random: Random) -> Item:
    """... A B ... A -> B, where A is a cue of several tokens; those of A B are nowhere else."""
    head, tokens = setting.opening(), vocabulary(setting)
    count = room(length, len(head) + 2 * (CUE + 1), setting.apart, "an induction item")
    random.shuffle(tokens)
    cue, answer = tokens[:CUE], tokens[CUE : CUE + 1]
    filler = random.choices(tokens[CUE + 1 :], k=count)
    place = round(depth * (count - setting.apart))
    return Item([*head, *filler[:place], *cue, *answer, *filler[place:], *cue], answer)
