"""A frozen model with Focus beside what one would use instead, on the same windows. Longformer's and the Routing
Transformer's patterns are put on the frozen weights; full fine-tuning sees as many windows as the routers.

python scripts/paper/retrofit.py                                             the small model
python scripts/paper/retrofit.py --model gpt2 --text books --device cuda     the paper's, on other books
"""

from __future__ import annotations

import argparse
from typing import Any

from study import Bench, Study
from summary import Claim, Settings

METHODS = (
    "full,window,wide,wide:2,longformer,longformer:2,routing,moba,moba:2,strided,strided:2,random,random:2,untrained,"
    "untrained:2,focus,focus:2,soft,finetune"
)
NOTHING_DRAWN = ("full", "window", "wide", "longformer", "moba", "strided")


def cells(bench: Bench) -> list[Settings]:
    found: list[Settings] = []
    for method in bench.options.methods.split(","):
        seeds = [None] if method.partition(":")[0] in NOTHING_DRAWN else bench.seeds
        found += [{"method": method, "seed": seed} for seed in seeds]
    return found


def measure(bench: Bench, settings: Settings) -> dict[str, Any]:
    import torch

    from focus_retrofit.evaluation import parse_methods, prepare

    method, seed = settings["method"], settings["seed"] or 0
    if method == "full":
        return bench.full()
    if method.partition(":")[0] in ("focus", "soft"):
        with bench.trained(seed) as model:
            return bench.measure(model, method)
    with bench.untrained(seed) as model:
        method = {"finetune": f"finetune@{bench.size.finetune_rate:g}"}.get(
            method, method.replace("untrained", "focus")
        )
        if any(one.learns for one in parse_methods(method)):
            count = bench.size.shown
            order = torch.randperm(len(bench.training), generator=torch.Generator().manual_seed(seed))
            prepare(
                model, parse_methods(method), [bench.training[int(n)]["input_ids"] for n in order[:count]], steps=count
            )
        return bench.measure(model, method, seed=seed)


def add_methods(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", default=METHODS, help="as of focus-retrofit eval, and 'untrained'")


STUDY = Study(
    "retrofit",
    "Retrofit of a frozen model",
    "GPT-2 124M on PG-19, T = 1024: pretrained 42.8, Longformer 38.9, Performer 112.0, Routing Transformer 37.4, full "
    "fine-tuning 36.4, Focus 36.2.",
    cells,
    measure,
    [
        Claim("Focus with frozen weights is better than the pretrained model", {"method": "focus"}, "less",
              {"method": "full"}),
        Claim("at k = 2 too", {"method": "focus:2"}, "less", {"method": "full"}),
        Claim("learned groups are better than the window alone", {"method": "focus"}, "less", {"method": "window"}),
        Claim("and than random groups (implied)", {"method": "focus"}, "less", {"method": "random"}),
        Claim("and than strided groups (implied)", {"method": "focus"}, "less", {"method": "strided"}),
        Claim("and than a window of as many pairs (implied)", {"method": "focus"}, "less", {"method": "wide"}),
        Claim("Focus is better than Longformer", {"method": "focus"}, "less", {"method": "longformer"}),
        Claim("and than a Routing Transformer", {"method": "focus"}, "less", {"method": "routing"}),
        Claim("and no worse than full fine-tuning", {"method": "focus"}, "same", {"method": "finetune"}),
    ],
    extra=add_methods,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
