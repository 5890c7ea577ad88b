"""How many groups a query looks into, by both rules of matching, beside random groups at the same density.

python scripts/paper/k_sweep.py --adapter smollm2-135m-python-reference --windows 6
"""

from __future__ import annotations

from typing import Any

from study import Bench, Study
from summary import Claim, Settings

K = 4


def cells(bench: Bench) -> list[Settings]:
    found: list[Settings] = [{"method": "full"}]
    for seed in bench.seeds:
        for k in range(1, K + 1):
            # with one group, or with all, both rules are the same
            found += [{"match": match, "k": k, "seed": seed} for match in ("probe", "share")[: 2 if 1 < k < K else 1]]
        found += [{"method": "random", "k": k, "seed": seed} for k in range(1, K)]
    return found


def measure(bench: Bench, settings: Settings) -> dict[str, Any]:
    if settings.get("method") == "full":
        return bench.full()
    with bench.trained(settings["seed"]) as model:
        model.focus.config.match = settings.get("match", "probe")
        method = settings.get("method", "focus")
        return bench.measure(model, f"{method}:{settings['k']}", seed=settings["seed"])


STUDY = Study(
    "k_sweep",
    "k sweep at K = 4",
    "GPT-2 124M: k = 1 82.9 (26% of the pairs), 2 41.3 (60%), 3 47.2 (100%), 4 47.2 (100%); Mistral 7B: 16.2, "
    "11.6 (73%), 10.8, 10.8.",
    cells,
    measure,
    [
        Claim("k = 2 is better than k = 1", {"match": "share", "k": 2}, "less", {"match": "probe", "k": 1}),
        Claim("k = 2 is better than all pairs (GPT-2)", {"match": "share", "k": 2}, "less", {"match": "probe", "k": K}),
        Claim(
            "k = 2 is worse than all pairs (Mistral)", {"match": "share", "k": 2}, "more", {"match": "probe", "k": K}
        ),
        Claim("k = 3 is as good as all pairs", {"match": "share", "k": 3}, "same", {"match": "probe", "k": K}),
    ],
    model="smollm2-135m",
)

if __name__ == "__main__":
    STUDY.main()
