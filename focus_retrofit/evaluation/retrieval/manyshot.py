"""Words with the labels of their kinds, many of them, then one more word: labels are drawn anew for every item."""

from __future__ import annotations

from random import Random

from focus_kernels import FocusError

from .item import Item, Setting, room
from .words import KINDS, LABELS


def manyshot(setting: Setting, length: int, depth: float, random: Random) -> Item:
    """Examples up to `length`, of the asked kind none in the last `apart` tokens, and never the asked word."""
    labels = dict(zip(KINDS, random.sample(single_tokens(setting), len(KINDS)), strict=True))
    asked = random.choice(list(KINDS))
    word = random.choice(KINDS[asked])
    head, tail = setting.opening(), setting.encode(f"\n{word} ->")
    count = room(length, len(head) + len(tail) + 1, setting.apart + 1, "a many-shot item")
    shots: list[int] = []  # from the last to the first
    while len(shots) < count:
        near = len(shots) < setting.apart
        kind = random.choice([kind for kind in KINDS if not (near and kind == asked)])
        shot = random.choice([x for x in KINDS[kind] if x != word])
        shots = [*setting.encode(f"\n{shot} ->"), labels[kind], *shots]
    return Item([*head, *shots[len(shots) - count :], *tail], [labels[asked]], tuple(labels.values()))


def single_tokens(setting: Setting) -> list[int]:
    """Labels that are one token after a space: one look at the logits then tells which is likeliest."""
    found = [ids[0] for ids in (setting.encode(f" {label}") for label in LABELS) if len(ids) == 1]
    if len(found) < len(KINDS):
        raise FocusError(
            f"only {len(found)} of the labels {' '.join(LABELS)} are one token of this tokenizer: "
            f"many-shot classification takes {len(KINDS)}"
        )
    return found
