"""What a token is, by another's word: Python's own tokenizer for source text, a tagger's parts of speech for prose."""

from __future__ import annotations

import bisect
import io
import keyword
import re
import tokenize
from functools import cache
from typing import Any

from focus_kernels.errors import FocusError

Span = tuple[int, int, str]  # characters [begin, end) of a text, and what they are
SPACE = "space"
KINDS = {tokenize.NUMBER: "number", tokenize.STRING: "string", tokenize.COMMENT: "comment", tokenize.OP: "operator"}
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?|\d+(?:\.\d+)?|[^\w\s]|_+")
PARTS = {  # the first letters of the British National Corpus's tags
    "AJ": "adjective", "AT": "determiner", "AV": "adverb", "CJ": "conjunction", "CR": "number", "DP": "determiner",
    "DT": "determiner", "NN": "noun", "NP": "name", "OR": "number", "PN": "pronoun", "PR": "preposition",
    "PU": "punctuation", "TO": "preposition", "VB": "verb", "VD": "verb", "VH": "verb", "VM": "verb", "VV": "verb",
}  # fmt: skip


def python_kinds(source: str) -> list[Span]:
    """Keywords, names, numbers, strings, comments and operators of a Python file."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            kind = KINDS.get(token.type)
            if token.type == tokenize.NAME:
                kind = "keyword" if keyword.iskeyword(token.string) else "name"
            if kind is not None:
                begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
                found.append((begin, end, kind))
    except (tokenize.TokenError, SyntaxError):
        pass  # what comes after a mistake, or the cut end of a file, has no kind
    return found


def parts_of_speech(text: str) -> list[Span]:
    """Nouns, verbs, determiners, ... of English text."""
    tagger, found, sentence = _tagger(), [], []
    words = list(WORD.finditer(text))
    for number, word in enumerate(words):
        sentence.append(word)
        if word[0] in ".!?:;" or number == len(words) - 1 or len(sentence) == 60:
            tags = tagger.tag_sent([x[0] for x in sentence], taglevel=1)
            for one, (_, _, tag) in zip(sentence, tags, strict=True):
                part = PARTS.get(tag[:2], "other") if one[0][0].isalnum() else "punctuation"
                found.append((one.start(), one.end(), part))
            sentence = []
    return found


@cache
def _tagger() -> Any:
    try:
        from HanTa.HanoverTagger import HanoverTagger  # type: ignore[import-untyped]
    except ImportError:
        raise FocusError("parts of speech come from the package HanTa: pip install --no-deps HanTa==1.2.1") from None
    return HanoverTagger("morphmodel_en.pgz")


def label_tokens(text: str, offsets: list[tuple[int, int]], spans: list[Span]) -> list[str]:
    """Each token takes what its first character that is not space lies in."""
    begins = [begin for begin, _, _ in spans]
    found = []
    for begin, end in offsets:
        piece = text[begin:end]
        first = begin + len(piece) - len(piece.lstrip())
        number = bisect.bisect_right(begins, first) - 1
        inside = first < end and number >= 0 and first < spans[number][1]
        found.append(spans[number][2] if inside else SPACE if first >= end else "other")
    return found
