"""Which way to train gives the best hard model per minute: SmolLM2-135M, a quarter of the distant pairs.

python scripts/compare_recipes.py --json results/recipes.json       about two hours on 2 cores; goes on where it stopped
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from train_domains import CONFIG, SPREAD, TOKENS

from focus_retrofit import FocusConfig, load_pretrained, retrofit
from focus_retrofit.evaluation import perplexity
from focus_retrofit.evaluation.texts import split, windows_of, without
from focus_retrofit.files import write_atomically
from focus_retrofit.training import Stream, TrainConfig, Windows, train

STEPS = 30
NOTHING = {"warm_start": False, "fit": "none", "steps": 0}
RECIPES: dict[str, dict[str, Any]] = {
    "random, balanced": {},
    "warm start (PCA, k-means)": {"warm_start": True},
    "random, fit mass": {"fit": "mass"},
    "random, fit sensitivity": {"fit": "sensitivity"},
    "random, fit gain, one round": {"fit": "gain", "fit_rounds": 1},
    "random, fit gain, one round, one start": {"fit": "gain", "fit_rounds": 1, "fit_starts": 1},
    "random, fit gain": {"fit": "gain"},
    "random, fit gain, trust 0.8": {"fit": "gain", "fit_trust": 0.8},
    "warm start, fit gain": {"warm_start": True, "fit": "gain"},
    "random, fit gain, not balanced": {"fit": "gain", "fit_balance": 0.0},
    "random, fit gain, no decay": {"fit": "gain", "fit_decay": 0.0},
    "random, trainer: mass": {"objective": "mass", "steps": STEPS, "lr": 3e-3},
    "random, trainer: lm": {"objective": "lm + 0.3*balance", "steps": STEPS},
    "random, trainer: lm-hard": {"objective": "lm-hard + 0.3*balance", "steps": STEPS},
    "random, trainer: distill": {"objective": "distill + 0.3*balance", "steps": STEPS},
}
EIGHT = {  # with K = 8, k = 2 instead
    "K = 8, fit gain, two groups in every layer": {"fit": "gain", "spread_windows": 0},
    "K = 8, fit gain, two on average, spread": {"fit": "gain"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--windows", type=int, default=8, help="windows to compare on")
    parser.add_argument("--fit-windows", type=int, default=24, help="windows to fit on")
    parser.add_argument("--fit-steps", type=int, default=400, help="steps of a fit")
    options = parser.parse_args()
    model, tokenizer = load_pretrained("smollm2-135m")
    topics = split("reference")[0]
    cut = 9 * len(topics) // 10  # a recipe is chosen on text set aside here: held-out text is for the one chosen
    training = Windows(Stream(without(topics[:cut], topics[cut:]), tokenizer, TOKENS, apart=False), "reference")
    held = windows_of(topics[cut:], "reference, set aside", tokenizer, TOKENS, options.windows)
    full = perplexity(model, held, "full attention")["perplexity"]
    record: dict[str, Any] = {
        "command": " ".join(["python", "scripts/compare_recipes.py", *sys.argv[1:]]),
        "what": "SmolLM2-135M on the Python reference, hard, K = 4, k = 1 unless said otherwise (K = 8: k = 2), "
        f"{len(held)} windows of topics set aside from the training text; "
        f"fits on {options.fit_windows} windows, {options.fit_steps} steps a round, the trainer "
        f"for {STEPS} steps of one window; full attention {full:.3f}",
        "rows": [],
    }
    if options.json and options.json.is_file():
        before = json.loads(options.json.read_text())
        record["rows"] = before["rows"] if before["what"] == record["what"] else []
    done = {row["recipe"] for row in record["rows"]}
    for name, changes in {**RECIPES, **EIGHT}.items():
        if name in done:
            continue
        fit = {"fit_windows": options.fit_windows, "fit_steps": options.fit_steps}
        config = TrainConfig(documents="joined", eval_every=0, **fit, **{**NOTHING, **changes})
        retrofit(model, FocusConfig(**(SPREAD if name in EIGHT else CONFIG)))
        with tempfile.TemporaryDirectory() as folder:
            minutes = train(model, tokenizer, training, folder, config=config)["minutes"]
        found = perplexity(model.eval(), held, name)
        model.focus.unload()
        found.update(recipe=name, minutes=minutes, over=found["perplexity"] / full - 1)
        record["rows"].append(found)
        print(f"{name:36} {minutes:5.1f} min  {found['perplexity']:.3f}  {found['over']:+.1%}", flush=True)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(options.json, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
