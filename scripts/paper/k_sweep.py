"""How many groups a query looks into, by both rules of matching, beside random groups at the same density. In quarters
of all groups: what the paper calls k = 1 to 4 at K = 4.

python scripts/paper/k_sweep.py --adapter smollm2-135m-mixed --windows 6
"""

from __future__ import annotations

from typing import Any

from study import Bench, Study, groups_per_query
from summary import Claim, Settings

QUARTERS = ("1/4", "1/2", "3/4", "1")


def cells(bench: Bench) -> list[Settings]:
    found: list[Settings] = [{"method": "full"}]
    for seed in bench.seeds:
        found += [{"match": "probe", "groups": part, "seed": seed} for part in QUARTERS]
        found += [{"match": "share", "groups": part, "seed": seed} for part in QUARTERS[:-1]]
        found += [{"method": "random", "groups": part, "seed": seed} for part in QUARTERS[:-1]]
    return found


def measure(bench: Bench, settings: Settings) -> dict[str, Any]:
    if settings.get("method") == "full":
        return bench.full()
    with bench.trained(settings["seed"]) as model:
        model.focus.config.match = settings.get("match", "probe")
        method = f"{settings.get('method', 'focus')}:{groups_per_query(model, settings['groups'])}"
        return bench.measure(model, method, seed=settings["seed"])


def claim(says: str, expect: Any, quarters: str, other: Settings) -> Claim:
    return Claim(says, {"match": "share", "groups": quarters}, expect, other)


ALL: Settings = {"match": "probe", "groups": "1"}
STUDY = Study(
    "k_sweep",
    "How many groups a query looks into",
    "GPT-2 124M, K = 4: k = 1 82.9 (26% of the pairs), 2 41.3 (60%), 3 47.2 (100%), 4 47.2 (100%); Mistral 7B: 16.2, "
    "11.6 (73%), 10.8, 10.8.",
    cells,
    measure,
    [
        claim("two of four groups are better than one", "less", "1/2", {"match": "probe", "groups": "1/4"}),
        claim("two of four are better than all pairs (GPT-2)", "less", "1/2", ALL),
        claim("two of four are worse than all pairs (Mistral)", "more", "1/2", ALL),
        claim("three of four are as good as all pairs", "same", "3/4", ALL),
    ],
    model="smollm2-135m",
)

if __name__ == "__main__":
    STUDY.main()
