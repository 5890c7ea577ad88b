"""Perplexity of SmolLM2-135M with hard routing before any training, beside full attention and groups that know nothing.

Text: the Python language reference (pydoc_data.topics), its last tenth; potentials are fitted on its beginning.
    python scripts/untrained_router.py --json results/untrained_router.json
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from focus_retrofit import FocusConfig, load_pretrained, retrofit
from focus_retrofit.evaluation import perplexity
from focus_retrofit.evaluation.baselines import Groups, own_groups, random_groups, routed, strided_groups
from focus_retrofit.files import write_atomically


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--windows", type=int, default=8, help="windows of text to evaluate")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of a window")
    options = parser.parse_args()

    model, tokenizer = load_pretrained("smollm2-135m")
    ids = tokenizer("\n\n".join(topics.values()), return_tensors="pt").input_ids[0]
    tokens, count = options.tokens, options.windows
    sample = ids[: 4 * tokens].view(4, tokens)
    windows = ids[len(ids) - count * tokens :].view(count, tokens)

    rows: list[dict[str, Any]] = [{"method": "full attention", **perplexity(model, windows, "full")}]
    cases: list[tuple[str, dict[str, Any], Groups | None, bool, int]] = [
        *((f"router, balanced, seed {seed}", {}, None, True, seed) for seed in (0, 1, 2)),
        ("router, balanced, no sinks", {"sinks": 0}, None, True, 0),
        ("router, balanced, k = 2", {"top_k": 2}, None, True, 0),
        ("router, as drawn", {}, None, False, 0),
        ("random groups", {}, random_groups(), False, 0),
        ("strided groups", {}, strided_groups, False, 0),
        ("window and sinks only", {"num_groups": tokens}, own_groups, False, 0),
        ("window only", {"num_groups": tokens, "sinks": 0}, own_groups, False, 0),
    ]
    for name, changes, groups, balanced, seed in cases:
        config = FocusConfig(**{"num_groups": 4, "top_k": 1, "window": 128, "sinks": 4, **changes})
        # a group per token is thousands of tiny lists to the fast engines: the dense reference has none
        retrofit(model, config, seed=seed, backend="reference" if groups is own_groups else "auto")
        with routed(model, groups) if groups else nullcontext():
            if balanced:
                model.focus.balance(sample)
            found = perplexity(model, windows, name)
        rows.append({"method": name, **found})
        model.focus.unload()
        print(f"{name:32} distant {found['distant']:.2f}  perplexity {found['perplexity']:.2f}")
    if options.json:
        command = " ".join(["python", "scripts/untrained_router.py", *sys.argv[1:]])
        facts = {"command": command, "model": "smollm2-135m", "tokens": tokens, "windows": count, "window": 128}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.json, json.dumps({**facts, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
