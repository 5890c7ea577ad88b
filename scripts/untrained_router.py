"""Perplexity of SmolLM2-135M with hard routing before any training, beside full attention and groups that know nothing.

Text: the Python language reference (pydoc_data.topics), its last tenth; potentials are fitted on its beginning.
    python scripts/untrained_router.py --json results/untrained_router.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from focus_retrofit import FocusConfig, load_pretrained, retrofit

Groups = Callable[[Tensor], Tensor]  # logits [B, T, K] -> groups [B, T, k]


def random_groups(logits: Tensor) -> Tensor:
    return torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)).topk(1).indices


def strided_groups(logits: Tensor) -> Tensor:
    return (torch.arange(logits.shape[1]) % logits.shape[2]).expand(logits.shape[0], -1)[..., None]


def own_groups(logits: Tensor) -> Tensor:
    """Every token alone: the window and the sinks are all there is."""
    return torch.arange(logits.shape[1]).expand(logits.shape[0], -1)[..., None]


@contextmanager
def routed(model: Any, groups: Groups | None) -> Iterator[None]:
    """Inside, all layers take these groups instead of their routers'."""
    routers = [model.focus.router(index) for index in model.focus.layer_indices]
    for router in routers if groups else []:
        router.groups = groups
    try:
        yield
    finally:
        for router in routers if groups else []:
            del router.groups


@torch.inference_mode()
def perplexity(model: Any, windows: Tensor, what: str) -> dict[str, float]:
    """exp of the mean loss over windows [N, T], with a standard error from the windows."""
    losses = torch.tensor(
        [model(w[None], labels=w[None], use_cache=False).loss.item() for w in tqdm(windows, desc=what, leave=False)]
    )
    value = losses.mean().exp().item()
    return {"perplexity": value, "standard_error": value * (losses.std() / len(losses) ** 0.5).item()}


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

    rows = [{"method": "full attention", "density": 1.0, "distant": 1.0, **perplexity(model, windows, "full")}]
    cases: list[tuple[str, dict[str, Any], Groups | None, bool, int]] = [
        *((f"router, balanced, seed {seed}", {}, None, True, seed) for seed in (0, 1, 2)),
        ("router, balanced, no sinks", {"sinks": 0}, None, True, 0),
        ("router, balanced, k = 2", {"top_k": 2}, None, True, 0),
        ("router, as drawn", {}, None, False, 0),
        ("random groups", {}, random_groups, False, 0),
        ("strided groups", {}, strided_groups, False, 0),
        ("window and sinks only", {"num_groups": tokens}, own_groups, False, 0),
        ("window only", {"num_groups": tokens, "sinks": 0}, own_groups, False, 0),
    ]
    for name, changes, groups, balanced, seed in cases:
        config = FocusConfig(**{"num_groups": 4, "top_k": 1, "window": 128, "sinks": 4, **changes})
        # a group per token is thousands of tiny lists to the fast engines: the dense reference has none
        retrofit(model, config, seed=seed, backend="reference" if groups is own_groups else "auto")
        with routed(model, groups):
            if balanced:
                model.focus.balance(sample)
            found = perplexity(model, windows, name)
            layers = model.focus.report().layers
        density, distant = (
            sum(getattr(line, part) or 0 for line in layers) / len(layers) for part in ("density", "distant")
        )
        rows.append({"method": name, "density": density, "distant": distant, **found})
        model.focus.unload()
        print(f"{name:32} distant {distant:.2f}  perplexity {found['perplexity']:.2f} ± {found['standard_error']:.2f}")
    if options.json:
        command = " ".join(["python", "scripts/untrained_router.py", *sys.argv[1:]])
        facts = {"command": command, "model": "smollm2-135m", "tokens": tokens, "windows": count, "window": 128}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
