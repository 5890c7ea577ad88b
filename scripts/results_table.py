"""Writes the tables of the READMEs and docs, and pictures beside them, from the result files; --check says whether the
tables are current."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from tables import kernels, long, quality, training
from tables.markdown import ROOT, measured, results

from focus_kernels.files import write_atomically


def front_page() -> str:
    return "\n".join((training.trained(), long.headlines(), kernels.decoding(), kernels.headlines()))


def results_page() -> str:
    parts = [
        ("domains", training.trained_details),
        ("compare", quality.comparison),
        ("compare-long", quality.longer_comparison),
        ("benchmarks-0", quality.benchmarks),
        ("retrieval", quality.retrieval),
        ("untrained_router", quality.untrained),
        ("recipes", training.recipes),
        ("training_cost", training.cost),
    ]
    found = [make() for file, make in parts if measured(file)]
    return "\n".join([*found, training.across()] if "across" in results("domains") else found)


SECTIONS: list[tuple[str, str, Callable[[], str]]] = [
    ("README.md", "results", front_page),
    ("kernels/README.md", "kernel results", kernels.every),
    ("docs/results.md", "more results", results_page),
    ("docs/training.md", "sizes", training.sizes),
    ("docs/positions.md", "positions", quality.positions),
    ("docs/long.md", "long", long.every),
    ("docs/planning.md", "check", long.checked),
]

PICTURES: dict[str, Callable[[], bytes]] = {
    "docs/images/compare.png": quality.rivals_picture,
    "docs/images/compare-long.png": quality.longer_picture,
    "docs/images/passkey.png": partial(quality.heat_map, "passkey"),
    "docs/images/needle.png": partial(quality.heat_map, "needle"),
}


def main() -> int:
    stale = 0
    for name, section, make in SECTIONS:
        path, begin, end = ROOT / name, f"<!-- {section} -->", f"<!-- end of {section} -->"
        before, _, rest = path.read_text().partition(begin)
        wanted = f"{before}{begin}\n{make()}{end}{rest.partition(end)[2]}"
        stale += wanted != path.read_text()
        if "--check" not in sys.argv:
            write_atomically(path, wanted)
    if "--check" in sys.argv:
        return stale
    for name, draw in PICTURES.items():
        write_atomically(ROOT / name, draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
