"""Whether groups stay even when all weights train: Sinkhorn, our potentials, and softmax with and without a loss.

python scripts/paper/balance.py
"""

from __future__ import annotations

from typing import Any

from study import Bench, Study
from summary import Claim, Settings

LOSS = "lm-hard + 0.3*balance"
WAYS = {  # balance, objective, weight of evenness in the fit
    "potentials": ("potentials", LOSS, 0.3),
    "sinkhorn": ("sinkhorn", LOSS, 0.3),
    "softmax + loss": ("softmax", LOSS, 0.3),
    "softmax": ("softmax", "lm-hard", 0.0),
}
GROUPS = 8


def cells(bench: Bench) -> list[Settings]:
    found: list[Settings] = [{"method": "full"}]
    for seed in bench.seeds:
        found += [{"balance": way, "weights": w, "seed": seed} for way in WAYS for w in ("frozen", "trained")]
    return found


def measure(bench: Bench, settings: Settings) -> dict[str, Any]:
    if settings.get("method") == "full":
        return bench.full()
    balance, objective, even = WAYS[settings["balance"]]
    train = {"objective": objective, "fit_balance": even, "finetune_lr": bench.size.finetune_rate}
    if settings["weights"] == "trained":
        train["finetune_steps"] = bench.size.finetune_steps
    with bench.trained(settings["seed"], train, num_groups=GROUPS, balance=balance) as model:
        return bench.measure(model)


def largest(a: str, weights_a: str, expect: Any, b: str, weights_b: str, says: str) -> Claim:
    a_cell, b_cell = ({"balance": x, "weights": w} for x, w in ((a, weights_a), (b, weights_b)))
    return Claim(says, a_cell, expect, b_cell, "largest_group", least=0.1)


STUDY = Study(
    "balance",
    "Balance under full fine-tuning",
    "Largest group, K = 8 (12.5% is even): softmax + balance loss 15.0% frozen, 99.4% after full fine-tuning; Sinkhorn "
    "14.6%, 15.9%.",
    cells,
    measure,
    [
        largest("softmax + loss", "trained", "more", "softmax + loss", "frozen", "softmax + loss collapses"),
        largest("sinkhorn", "trained", "less", "softmax + loss", "trained", "Sinkhorn stays more even than that"),
        largest("potentials", "trained", "less", "softmax + loss", "trained", "potentials do (ours, for Sinkhorn)"),
    ],
)

if __name__ == "__main__":
    STUDY.main()
