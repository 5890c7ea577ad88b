"""Routers trained on short windows, used on longer ones.

python scripts/paper/transfer.py --adapter smollm2-135m-mixed --windows 3 --lengths 1024,2048,4096
"""

from __future__ import annotations

import argparse
from typing import Any

from study import Bench, Study, groups_per_query
from summary import Claim, Settings

METHODS: list[Settings] = [  # without groups: as many as the routers were trained with
    *({"method": method} for method in ("window", "wide", "random", "focus")),
    *({"method": method, "groups": part} for part in ("1/2", "3/4") for method in ("wide", "random", "focus")),
]


def lengths(bench: Bench) -> list[int]:
    given = bench.options.lengths
    return [int(x) for x in given.split(",")] if given else [bench.size.length * n for n in (1, 2, 4, 8)]


def cells(bench: Bench) -> list[Settings]:
    found: list[Settings] = []
    for length in lengths(bench):
        found.append({"length": length, "method": "full"})
        found += [{"length": length, **method, "seed": seed} for seed in bench.seeds for method in METHODS]
    return found


def measure(bench: Bench, settings: Settings) -> dict[str, Any]:
    seed = settings["seed"] or 0
    with bench.trained(seed) as model:
        method = settings["method"]
        if "groups" in settings:
            method = f"{method}:{groups_per_query(model, settings['groups'])}"
        return bench.measure(model, method, seed=seed, windows=bench.held(settings["length"]))


def add_lengths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lengths", help="tokens of windows, such as 1024,2048; by default 1, 2, 4 and 8 times --length"
    )


STUDY = Study(
    "transfer",
    "Long context with centroids trained short",
    "Mistral 7B, K = 4, trained at 1K, T = 1K/2K/4K/8K: full 6.13 5.84 5.45 6.10; k = 2 6.39 6.13 5.76 6.57; "
    "k = 3 6.13 5.84 5.45 6.05.",
    cells,
    measure,
    [
        claim
        for length in (1024, 2048, 4096, 8192)
        for claim in (
            Claim(
                f"two of four groups are worse than full attention at {length}",
                {"length": length, "method": "focus", "groups": "1/2"},
                "more",
                {"length": length, "method": "full"},
            ),
            Claim(
                f"three of four are {'as good as' if length < 8192 else 'better than'} full attention at {length}",
                {"length": length, "method": "focus", "groups": "3/4"},
                "same" if length < 8192 else "less",
                {"length": length, "method": "full"},
            ),
        )
    ],
    against=lambda settings: {"length": settings["length"], "method": "full"},
    model="smollm2-135m",
    extra=add_lengths,
)

if __name__ == "__main__":
    STUDY.main()
