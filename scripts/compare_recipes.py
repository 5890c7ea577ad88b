"""Which way to train gives the best hard model per minute: SmolLM2-135M, a quarter of the distant pairs.

python scripts/compare_recipes.py        results/recipes.json; about two hours on 2 cores; goes on where it stopped
python scripts/compare_recipes.py --only "random, fit gain" --seeds 3          adds seeds of some of them
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from train_domains import CONFIG, SPREAD, TOKENS

from focus_retrofit import FocusConfig, load_pretrained, retrofit
from focus_retrofit.benchmark import machine_facts, versions
from focus_retrofit.evaluation import attending, perplexity
from focus_retrofit.evaluation.texts import split, windows_of, without
from focus_retrofit.record import Record
from focus_retrofit.training import Stream, TrainConfig, Windows, train

STEPS = 30
NOTHING = {"warm_start": False, "fit": "none", "fit_rounds": 2, "fit_trust": 0.0, "steps": 0}
LM_HARD, DISTILL = "lm-hard + 0.3*balance", "distill + 0.3*balance"
RANDOM = "random groups, no router"
RECIPES: dict[str, dict[str, Any]] = {
    RANDOM: {},
    "random, balanced": {},
    "warm start (PCA, k-means)": {"warm_start": True},
    "random, fit gain": {"fit": "gain"},
    "random, fit gain, then lm-hard": {"fit": "gain", "objective": LM_HARD, "steps": STEPS},
    "random, fit gain, then distill": {"fit": "gain", "objective": DISTILL, "steps": STEPS},
    "random, trainer: mass": {"objective": "mass", "steps": STEPS, "lr": 3e-3},
    "random, trainer: lm": {"objective": "lm + 0.3*balance", "steps": STEPS},
    "random, trainer: lm-hard": {"objective": LM_HARD, "steps": STEPS},
    "random, trainer: distill": {"objective": DISTILL, "steps": STEPS},
    "random, fit mass": {"fit": "mass"},
    "random, fit sensitivity": {"fit": "sensitivity"},
    "random, fit gain, one round": {"fit": "gain", "fit_rounds": 1},
    "random, fit gain, one round, one start": {"fit": "gain", "fit_rounds": 1, "fit_starts": 1},
    "random, fit gain, trust 0.8": {"fit": "gain", "fit_trust": 0.8},
    "warm start, fit gain": {"warm_start": True, "fit": "gain"},
    "random, fit gain, not balanced": {"fit": "gain", "fit_balance": 0.0},
    "random, fit gain, no decay": {"fit": "gain", "fit_decay": 0.0},
}
EIGHT = {  # with K = 8, k = 2 instead
    "K = 8, fit gain, two groups in every layer": {"fit": "gain", "spread_windows": 0},
    "K = 8, fit gain, two on average, spread": {"fit": "gain"},
}
HEADS = {  # with a temperature per query head, where the others have one per layer
    "random, fit gain, one round, then lm-hard, heads": {
        "fit": "gain",
        "fit_rounds": 1,
        "objective": LM_HARD,
        "steps": STEPS,
    },
}
ALL = {**RECIPES, **EIGHT, **HEADS}


def measure(model: Any, tokenizer: Any, training: Any, held: Any, name: str, fit: dict[str, int]) -> dict[str, Any]:
    """Train by a recipe, and read the windows set aside."""
    config = TrainConfig(documents="joined", eval_every=0, **fit, **{**NOTHING, **ALL[name]})
    temperature = "heads" if name in HEADS else "learned"
    focus = {**(SPREAD if name in EIGHT else CONFIG), "temperature": temperature}
    retrofit(model, FocusConfig(**focus), seed=fit["seed"])
    try:
        if name == RANDOM:
            with attending(model, "random", seed=fit["seed"]):
                return {"minutes": 0.0, **perplexity(model.eval(), held, name)}
        with tempfile.TemporaryDirectory() as folder:
            minutes = train(model, tokenizer, training, folder, config=config)["minutes"]
        return {"minutes": minutes, **perplexity(model.eval(), held, name)}
    finally:
        model.focus.unload()


def paired(losses: list[float], full: list[float]) -> dict[str, float]:
    """How much larger a loss is than full attention's, by window; about the share by which perplexity is."""
    more = [a - b for a, b in zip(losses, full, strict=True)]
    return {"over": fmean(more), "over_error": stdev(more) / len(more) ** 0.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("results/recipes.json"))
    parser.add_argument("--windows", type=int, default=8, help="windows to compare on")
    parser.add_argument("--fit-windows", type=int, default=24, help="windows to fit on")
    parser.add_argument("--fit-steps", type=int, default=400, help="steps of a fit")
    parser.add_argument("--seeds", type=int, default=1, help="seeds, each a row; more of them later are added")
    parser.add_argument("--only", action="append", choices=ALL, help="this recipe alone; may be given again")
    options = parser.parse_args()
    model, tokenizer = load_pretrained("smollm2-135m")
    topics = split("reference")[0]
    cut = 9 * len(topics) // 10  # a recipe is chosen on text set aside here: held-out text is for the one chosen
    training = Windows(Stream(without(topics[:cut], topics[cut:]), tokenizer, TOKENS, apart=False), "reference")
    held = windows_of(topics[cut:], "reference, set aside", tokenizer, TOKENS, options.windows)
    fit = {"fit_windows": options.fit_windows, "fit_steps": options.fit_steps}
    record = Record(options.json, {"windows": options.windows, **fit, "trainer_steps": STEPS})
    command = shlex.join(["python", "scripts/compare_recipes.py", *sys.argv[1:]])
    record.setdefault("command", command)
    if "full" not in record:
        record["full"] = perplexity(model, held, "full attention")
    record["planned"] = len(ALL)
    rows: list[dict[str, Any]] = record.setdefault("rows", [])
    done = {(row["recipe"], row["seed"]) for row in rows}
    for seed in range(options.seeds):
        for name in options.only or ALL:
            if (name, seed) in done:
                continue
            found = measure(model, tokenizer, training, held, name, {**fit, "seed": seed})
            found.update(recipe=name, seed=seed, **paired(found["losses"], record["full"]["losses"]))
            found.update(command=command, versions=versions(), machine=machine_facts())
            rows.append(found)
            print(f"{name:44} seed {seed} {found['minutes']:5.1f} min  {found['over']:+.2%}", flush=True)
            record.save()


if __name__ == "__main__":
    main()
