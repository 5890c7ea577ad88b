"""Train an adapter for SmolLM2-135M on a domain, and compare it with everything that knows less on held-out text.

    python scripts/train_domains.py reference            trains (or resumes) runs/domains/reference, then evaluates
    python scripts/train_domains.py reference --spread   the same pairs with K = 8, k = 2 on average, by layer
    python scripts/train_domains.py reference --spread --trust 0.8          fitted mostly to what the base predicts
    python scripts/train_domains.py --across             each of these on the others' text
    python scripts/train_domains.py --ship               puts the adapter of all texts, spread, into the package
Results go to results/domains.json, a part for each domain. About half an hour per domain on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from focus_retrofit import FocusConfig, load_adapter, load_pretrained, retrofit
from focus_retrofit.adapter import SHIPPED
from focus_retrofit.config import shown_k
from focus_retrofit.evaluation import evaluate, parse_methods, perplexity
from focus_retrofit.evaluation.texts import MIXED, PARTS, TEXTS, overlap, split
from focus_retrofit.files import write_atomically
from focus_retrofit.training import Stream, TrainConfig, Windows, train

CONFIG = {"num_groups": 4, "top_k": 1, "window": 128, "sinks": 4, "temperature": "heads"}
SPREAD = {**CONFIG, "num_groups": 8, "top_k": 2}
BEFORE = {"fit_windows": 72, "fit_rounds": 2, "fit_trust": 0.0, "steps": 70}  # and a temperature for each layer
SPREAD_PART = ", spread"  # ends the names of their parts
ADAPTER = "smollm2-135m-mixed"  # comes with the package
RUNS, RESULTS = Path("runs/domains"), Path("results/domains.json")
TOKENS = 1024


def held_out_windows(domain: str, tokenizer: Any, count: int) -> list[Tensor]:
    """Running text of held-out documents, `count` windows spread evenly over it."""
    windows = Windows(Stream(split(domain)[1], tokenizer, TOKENS, apart=False), f"{domain}, held out")
    step = max(len(windows) / count, 1.0)
    return [windows[int(n * step)]["input_ids"] for n in range(min(count, len(windows)))]


def leak(model: Any, window: Tensor) -> float:
    """Largest change of a logit when everything after its token changes; must be 0."""
    changed = window.clone()
    changed[TOKENS // 2 :] = changed[TOKENS // 2 :].flip(0)
    with torch.inference_mode():
        a, b = (model(x[None], use_cache=False).logits[:, : TOKENS // 2] for x in (window, changed))
    return float((a - b).abs().max())


def compared(model: Any, windows: list[Tensor], sample: Tensor) -> list[dict[str, Any]]:
    """The trained router, hard and soft, at a quarter and half of the pairs, and all that knows less."""
    config = model.focus.config
    k, more = config.top_k, 2 * config.top_k
    # with all groups nothing but temperatures is left of what was learned
    names = f"full,window,random,strided,random:{more},strided:{more},focus,focus:{more},focus:{config.num_groups},soft"
    if config.layer_top_k:
        names += f",focus:{k}"
    rows = evaluate(model, windows, parse_methods(names), print_row)
    for row in rows:
        row["method"] = row["method"].replace("Focus", "trained router")
    model.focus.add_adapter("untrained", replace(config, temperature=None, layer_top_k=None))
    model.focus.set_adapter("untrained")
    model.focus.balance(sample)
    plain = evaluate(model, windows, parse_methods(f"focus,focus:{more}"), print_row)
    model.focus.set_adapter("default")
    model.focus.delete_adapter("untrained")
    for row in plain:
        row["method"] = row["method"].replace("Focus", "untrained router")
    return rows + plain


def print_row(row: dict[str, Any]) -> None:
    print(
        f"{row['method']:28} perplexity {row['perplexity']:7.3f} ± {row['standard_error']:.2f}  "
        f"distant {row['distant']:.3f}  largest group {row.get('largest_group', 0):.2f}",
        flush=True,
    )


def write(part: str, value: Any) -> None:
    """One part of the results file, the others as they are."""
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results[part] = value
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(RESULTS, json.dumps(results, indent=1) + "\n")


def run(domain: str, options: argparse.Namespace) -> None:
    model, tokenizer = load_pretrained("smollm2-135m")
    training = Windows(Stream(split(domain)[0], tokenizer, TOKENS, apart=False), domain)
    held = held_out_windows(domain, tokenizer, options.windows)
    chosen = {**(BEFORE if options.before else {}), **json.loads(options.train)}
    if options.trust is not None:
        chosen["fit_trust"] = options.trust
    if options.seed:
        chosen["seed"] = options.seed
    config = TrainConfig(documents="joined", eval_every=0, **chosen)
    focus = FocusConfig(**(SPREAD if options.spread else CONFIG))
    retrofit(model, replace(focus, temperature="learned") if options.before else focus)
    part = domain + (f", trust {options.trust:g}" if options.trust is not None else "")
    part += (f", seed {options.seed}" if options.seed else "") + SPREAD_PART * options.spread
    torch.set_float32_matmul_precision(options.matmul)
    found = train(model, tokenizer, training, RUNS / part, config=config)
    torch.set_float32_matmul_precision("highest")
    model.eval()
    leaked = leak(model, held[0])
    rows = compared(model, held, torch.stack([training[n]["input_ids"] for n in range(4)]))
    value = {
        "command": shlex.join(["python", "scripts/train_domains.py", *sys.argv[1:]]),
        "model": "smollm2-135m",
        "tokens": TOKENS,
        "windows": len(held),
        "overlap": overlap(*split(domain)),
        "training": {"windows": len(training), "minutes": found["minutes"], "matmul": options.matmul, **vars(config)},
        "threads": torch.get_num_threads(),
        "stages": found["stages"],
        "parameters": found["parameters"],
        "leak": leaked,
        "rows": rows,
    }
    write(part, value)
    print(f"{part}: {found['minutes']:.0f} minutes of training, leak {value['leak']}")


def across(options: argparse.Namespace) -> None:
    """Each adapter, spread, on each domain's text, switched by name on one base model; the one that comes along stands
    in for the mixed where that was not trained here. Rows of adapters that are not here stay as they were."""
    model, tokenizer = load_pretrained("smollm2-135m")
    folders = {MIXED: SHIPPED / ADAPTER}
    trained = sorted(x for x in RUNS.glob(f"*{SPREAD_PART}/adapter") if ", seed " not in x.parent.name)
    folders |= {x.parent.name.removesuffix(SPREAD_PART): x for x in trained}
    texts = {name: held_out_windows(name, tokenizer, options.windows) for name in PARTS}
    found: dict[str, Any] = {"full attention": {name: perplexity(model, texts[name], name) for name in texts}}
    before = json.loads(RESULTS.read_text()).get("across", {}) if RESULTS.is_file() else {}
    for name, row in before.get("full attention", found["full attention"]).items():
        if abs(row["perplexity"] - found["full attention"][name]["perplexity"]) > 1e-3:
            raise SystemExit(f"{RESULTS}: full attention was another on {name}, so the texts differ: delete 'across'")
    load_adapter(model, str(folders[MIXED]))
    for name, folder in folders.items():
        model.focus.add_adapter(name, folder)
        model.focus.set_adapter(name)
        found[name] = {text: perplexity(model, texts[text], f"{name} on {text}") for text in texts}
        print(name, {text: round(row["perplexity"], 3) for text, row in found[name].items()}, flush=True)
    write("across", {**before, **found})


def ship() -> None:
    """The adapter of all texts, spread, becomes the one that comes with the package, its results on the card."""
    model, _ = load_pretrained("smollm2-135m")
    part = MIXED + SPREAD_PART
    load_adapter(model, str(RUNS / part / "adapter"))
    rows = {row["method"]: row for row in json.loads(RESULTS.read_text())[part]["rows"]}
    trained, full = rows[f"trained router, k = {shown_k(vars(model.focus.config))}"], rows["full attention"]
    results = {
        "text": "the Python reference, source code and books, held-out documents",
        "perplexity": round(trained["perplexity"], 3),
        "perplexity of full attention": round(full["perplexity"], 3),
        "distant pairs": round(trained["distant"], 3),
    }
    model.focus.save_pretrained(SHIPPED / ADAPTER, results=results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("domains", nargs="*", help=f"domains to train on: {', '.join((*TEXTS, MIXED))}")
    parser.add_argument("--across", action="store_true", help="evaluate each adapter on the others' text")
    parser.add_argument(
        "--spread", action="store_true", help="K = 8, k = 2 on average, by layer, in place of K = 4, k = 1"
    )
    parser.add_argument("--before", action="store_true", help="the recipe before the default of today")
    parser.add_argument("--trust", type=float, help="fit_trust of the training options; names the part")
    parser.add_argument("--seed", type=int, default=0, help="another than 0 names the part")
    parser.add_argument("--ship", action="store_true", help="put the adapter of all texts, spread, into the package")
    parser.add_argument("--windows", type=int, default=8, help="held-out windows to evaluate on")
    parser.add_argument(
        "--matmul",
        choices=("highest", "high", "medium"),
        default="highest",
        help="torch's float32 matmul precision in training; 'medium' is several times faster where a CPU has AMX",
    )
    parser.add_argument("--train", default="{}", help="training options as JSON, where they differ from the defaults")
    options = parser.parse_args()
    wrong = [name for name in options.domains if name not in (*TEXTS, MIXED)]
    if wrong:
        parser.error(f"no domain {wrong[0]!r}; there are: {', '.join((*TEXTS, MIXED))}")
    for domain in options.domains:
        run(domain, options)
    if options.across:
        across(options)
    if options.ship:
        ship()


if __name__ == "__main__":
    main()
