"""The tasks by name."""

from __future__ import annotations

from .copying import copying
from .induction import induction
from .item import Task
from .manyshot import manyshot
from .needle import needle
from .passkey import passkey

TASKS = {
    "passkey": Task(passkey, "a number in filler that repeats"),
    "needle": Task(needle, "one of four numbers with names, in running text", haystack=True),
    "manyshot": Task(manyshot, "the label of a word, after many labelled words", deep=False, score="choice"),
    "copy": Task(copying, "random tokens again", deep=False, score="tokens"),
    "induction": Task(induction, "the token after one that came before, among random ones"),
}
