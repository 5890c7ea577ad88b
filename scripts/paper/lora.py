"""LoRA at the routers' number of parameters, at other ranks and several learning rates: what it gains on the text it is
trained on, and what it loses elsewhere. Every cell reads as many windows as the routers did.

python scripts/paper/lora.py                                            the small model, on text that is new to it
python scripts/paper/lora.py --model smollm2-135m --adapter smollm2-135m-mixed --budgets equal --fast \
    --benchmarks focus_truthfulqa_mc1 --limit 100                       alignment
"""

from __future__ import annotations

import argparse
from statistics import fmean
from typing import Any

from study import Bench, Study
from summary import Claim, Settings

from focus_kernels.errors import FocusError

BUDGETS = {"half": 0.5, "equal": 1.0, "four times": 4.0}  # times the routers' parameters
RATES = (1e-4, 5e-4, 2e-3)


def cells(bench: Bench) -> list[Settings]:
    found: list[Settings] = [{"method": "full"}]
    for seed in bench.seeds:
        found += [{"budget": budget, "rate": rate, "seed": seed} for budget in budgets(bench) for rate in RATES]
        found += [{"method": method, "seed": seed} for method in ("focus", "focus:2")]
    return found


def budgets(bench: Bench) -> list[str]:
    given = (bench.options.budgets or ",".join(BUDGETS)).split(",")
    unknown = [name for name in given if name not in BUDGETS]
    if unknown:
        raise FocusError(f"no budget {unknown[0]!r}; there are: {', '.join(BUDGETS)}")
    return given


def measure(bench: Bench, settings: Settings) -> dict[str, Any]:
    seed = settings["seed"] or 0
    if "method" in settings:
        method = settings["method"]
        with (bench.untrained if method == "full" else bench.trained)(seed) as model:
            return {**bench.measure(model, method), **beside(bench, model, method)}
    with bench.untrained(seed) as model:
        lora = trained_lora(bench, model, BUDGETS[settings["budget"]], settings["rate"], seed)
        with lora.applied(model):
            found = {**bench.measure(model, "full"), **beside(bench, model, "full")}
    return {**found, "rank": lora.rank, "parameters": sum(x.numel() for x in lora.tensors.values())}


def trained_lora(bench: Bench, model: Any, times: float, rate: float, seed: int) -> Any:
    """Trained on as many windows as the routers, drawn by the seed."""
    import torch

    from focus_retrofit.rivals import LoRA

    steps = bench.size.shown
    with LoRA(rate=rate, steps=steps, rank=1).trained_in(model) as parameters:
        of_a_rank = sum(p.numel() for p in parameters.values())
    rank = max(1, round(times * model.focus.num_parameters() / of_a_rank))
    order = torch.randperm(len(bench.training), generator=torch.Generator().manual_seed(seed))[:steps]
    lora = LoRA(rate=rate, steps=steps, rank=rank)
    lora.prepare(model, [bench.training[int(n)]["input_ids"] for n in order])
    return lora


def beside(bench: Bench, model: Any, method: str) -> dict[str, Any]:
    """What training on one text did to the rest: perplexity on another, and benchmarks where they are asked for."""
    losses = bench.measure(model, method, windows=bench.held(text=bench.options.elsewhere))["losses"]
    found: dict[str, Any] = {"elsewhere": fmean(losses), "elsewhere_by_window": losses}
    if bench.options.benchmarks:
        from focus_retrofit.evaluation import parse_methods
        from focus_retrofit.evaluation.harness import run_tasks

        tasks, limit = bench.options.benchmarks.split(","), bench.options.limit
        rows = run_tasks(model, bench.tokenizer, parse_methods(method), tasks, limit=limit)
        parts = ("value", "standard_error", "items", "metric")
        found["benchmarks"] = {row["task"]: {name: row[name] for name in parts} for row in rows}
        for row in rows:
            task = row["task"].removeprefix("focus_")
            found |= {task: row["value"], f"{task}_by_window": row["values"]}
    return found


def add_texts(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(text="reference")
    parser.add_argument("--elsewhere", default="source", help="text that is not trained on")
    parser.add_argument("--budgets", help=f"of {', '.join(BUDGETS)}, times the routers' parameters; by default all")
    parser.add_argument("--benchmarks", help="tasks of focus_retrofit.evaluation.harness, for every cell")
    parser.add_argument("--limit", type=int, help="items of a benchmark")


TRUTH = "truthfulqa_mc1"
EQUAL: Settings = {"budget": "equal", "rate": 5e-4}
STUDY = Study(
    "lora",
    "LoRA at equal parameters",
    "GPT-2 124M: LoRA r = 4 (147K) 31.6, at -0.4 -1.6 -2.1 -0.5 on four benchmarks; centroids 34.2, at 0.0. "
    "Mistral-7B-Instruct, TruthfulQA MC1: base 39.7, centroids 40.0, LoRA at 1e-5/5e-5/1e-4 40.1/33.3/28.5.",
    cells,
    measure,
    [
        Claim("LoRA is better than centroids where it is trained", EQUAL, "less", {"method": "focus"}),
        Claim("LoRA loses elsewhere", EQUAL, "more", {"method": "full"}, "elsewhere"),
        Claim("centroids lose nothing elsewhere", {"method": "focus"}, "same", {"method": "full"}, "elsewhere"),
        Claim("LoRA loses more at a higher rate", {"budget": "equal", "rate": RATES[-1]}, "more",
              {"budget": "equal", "rate": RATES[0]}, "elsewhere"),
        Claim("centroids keep TruthfulQA", {"method": "focus"}, "same", {"method": "full"}, TRUTH),
        Claim("LoRA at a low rate keeps it", {"budget": "equal", "rate": RATES[0]}, "same", {"method": "full"}, TRUTH),
        Claim("LoRA at a high rate loses it", {"budget": "equal", "rate": RATES[-1]}, "less", {"method": "full"},
              TRUTH),
    ],
    extra=add_texts,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
