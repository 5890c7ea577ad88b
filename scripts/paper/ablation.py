"""Number of groups, window, temperature of the scores, and rounds of Sinkhorn, one at a time, with the largest group.

K = 8, k = 1 but where that is what changes; rounds with the paper's balance, which sees the future.
    python scripts/paper/ablation.py
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from study import Bench, Study
from summary import Claim, Settings

VALUES: dict[str, tuple[Any, ...]] = {
    "groups": (4, 8, 16, 32),
    "times window": ("1/2", "1", "2", "4"),
    "tau": (0.05, 0.1, 0.2, 0.5),
    "rounds": (3, 5, 10, 20),
}


def cells(bench: Bench) -> list[Settings]:
    found: list[Settings] = [{"method": "full"}]
    for seed in bench.seeds:
        found += [{name: value, "seed": seed} for name, values in VALUES.items() for value in values]
    return found


def measure(bench: Bench, settings: Settings) -> dict[str, Any]:
    if settings.get("method") == "full":
        return bench.full()
    changes: dict[str, Any] = {"num_groups": settings.get("groups", 8), "tau": settings.get("tau", 0.1)}
    changes["window"] = int(bench.size.window * Fraction(settings.get("times window", "1")))
    if "rounds" in settings:
        changes.update(balance="sinkhorn", sinkhorn_rounds=settings["rounds"])
    with bench.trained(settings["seed"], **changes) as model:
        return bench.measure(model)


STUDY = Study(
    "ablation",
    "K, window, tau and rounds",
    "GPT-2 124M, frozen: K 4/8/16/32 36.8/38.4/40.4/42.4; w 64/128/256/512 38.3/38.4/38.1/38.6; tau .05/.1/.2/.5 "
    "36.9/38.4/39.1/40.5; rounds 3/5/10/20 35.8/36.8/38.4/39.0 with largest groups of 95/69/21/14%.",
    cells,
    measure,
    [
        Claim("fewer groups are better", {"groups": 4}, "less", {"groups": 32}),
        Claim("the window does not matter", {"times window": "1/2"}, "same", {"times window": "4"}),
        Claim("sharper scores are better", {"tau": 0.05}, "less", {"tau": 0.5}),
        Claim("fewer rounds look better", {"rounds": 3}, "less", {"rounds": 20}),
        Claim("because one group takes most tokens", {"rounds": 3}, "more", {"rounds": 20}, "largest_group", 0.1),
    ],
)

if __name__ == "__main__":
    STUDY.main()
