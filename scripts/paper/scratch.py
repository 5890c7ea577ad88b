"""All weights from scratch, with full attention and with Focus: the same weights to begin with, text, steps and rates.

python scripts/paper/scratch.py
"""

from __future__ import annotations

from typing import Any

from study import Bench, Study
from summary import Claim, Settings

FULL = {"num_groups": 1}  # one group holds every token: all pairs, by the same trainer
ATTENTION: dict[str, dict[str, Any]] = {"full": FULL, "focus": {}, "focus, k = 2": {"top_k": 2}}


def cells(bench: Bench) -> list[Settings]:
    return [{"attention": name, "seed": seed} for seed in bench.seeds for name in ATTENTION]


def from_scratch(bench: Bench) -> dict[str, Any]:
    """Options of training everything at once."""
    size = bench.size
    rates = {"lr": size.scratch_rate, "finetune_lr": size.scratch_rate}
    return {"frozen": False, "fit": "none", "steps": size.scratch_steps, "batch_size": size.scratch_batch, **rates}


def measure(bench: Bench, settings: Settings) -> dict[str, Any]:
    changes = {"temperature": None, **ATTENTION[settings["attention"]]}
    with bench.trained(settings["seed"], from_scratch(bench), scratch=True, **changes) as model:
        return bench.measure(model)


STUDY = Study(
    "scratch",
    "From scratch",
    "7B, 2B tokens: 13.89 full attention, 13.82 Focus.",
    cells,
    measure,
    [
        Claim("Focus is as good as full attention", {"attention": "focus"}, "same", {"attention": "full"}),
        Claim("at k = 2 too", {"attention": "focus, k = 2"}, "same", {"attention": "full"}),
    ],
    against=lambda settings: {"attention": "full"},
    weights=False,
)

if __name__ == "__main__":
    STUDY.main()
