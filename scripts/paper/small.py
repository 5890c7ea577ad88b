"""Small models trained here from scratch on the standard library's source: sweeps that would take a larger one hours.

python scripts/paper/small.py --model small        trains it into runs/paper/models/small, if it is not there yet
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focus_kernels.errors import FocusError
from focus_kernels.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Recipe:
    """A llama and how it is trained; the same numbers give the same model on the same machine."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    vocabulary: int
    length: int
    batch: int
    steps: int
    lr: float = 3e-3
    characters: int | None = None  # of the training text; None is all of it
    seed: int = 0


RECIPES = {
    "small": Recipe(4, 128, 4, 2, vocabulary=1024, length=512, batch=8, steps=1500),
    "tiny": Recipe(2, 32, 2, 1, vocabulary=300, length=96, batch=4, steps=8, characters=60_000),
}


def load_small(name: str, runs: Path, trained: bool = True) -> tuple[Any, Any]:
    """(model, tokenizer) of a recipe, trained now if that was not done before; without `trained`, before training."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    recipe, folder = RECIPES[name], runs / "models" / name
    if not trained:
        model, tokenizer, _ = _begin(recipe)
        model.config.name_or_path = name
        return model.eval(), tokenizer
    facts = folder / "recipe.json"
    if not facts.is_file():
        _make(recipe, name, folder)
        write_atomically(facts, json.dumps(asdict(recipe), indent=1) + "\n")
    elif json.loads(facts.read_text()) != asdict(recipe):
        raise FocusError(f"{folder} holds a model of another recipe: delete it, or choose another --runs")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    model.config.name_or_path = name
    return model, AutoTokenizer.from_pretrained(folder)


def new_model(recipe: Recipe, seed: int) -> Any:
    """A llama with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=4 * recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.key_heads,
        max_position_embeddings=16 * recipe.length,
        tie_word_embeddings=True,
        initializer_range=recipe.hidden**-0.5 / 2,
        bos_token_id=None,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


def new_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Byte-level BPE learned from the training text, so that no held-out word is known to it."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(texts, vocabulary, min_frequency=1, special_tokens=["<end>"], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=learned._tokenizer, eos_token="<end>")


def optimise(model: nn.Module, windows: Any, steps: int, lr: float, batch: int, seed: int, what: str) -> float:
    """Next-token training of a model without Focus: AdamW, a warm-up, then a line down to 0, windows in random order.
    Returns the last steps' mean loss."""
    import torch
    from tqdm.auto import tqdm

    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr, betas=(0.9, 0.95), weight_decay=0.0)
    warm = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / warm, (steps - n) / steps))
    generator = torch.Generator().manual_seed(seed)
    device, recent = next(model.parameters()).device, math.nan
    order: list[int] = []
    model.train()
    progress = tqdm(range(steps), desc=what, unit=" steps", leave=False)
    for _ in progress:
        while len(order) < batch:
            order += torch.randperm(len(windows), generator=generator).tolist()
        chosen, order = order[:batch], order[batch:]
        ids: Tensor = torch.stack([windows[n]["input_ids"] for n in chosen]).to(device)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        recent = float(loss.detach()) if math.isnan(recent) else 0.95 * recent + 0.05 * float(loss.detach())
        progress.set_postfix(loss=f"{recent:.3f}")
    model.eval()
    return recent


def _begin(recipe: Recipe) -> tuple[Any, Any, list[str]]:
    """(model with random weights, tokenizer, training text)"""
    from focus_retrofit.evaluation.texts import split

    texts = first(split("source")[0], recipe.characters)
    return new_model(recipe, recipe.seed), new_tokenizer(texts, recipe.vocabulary), texts


def _make(recipe: Recipe, name: str, folder: Path) -> None:
    from focus_retrofit.training import Stream, Windows

    model, tokenizer, texts = _begin(recipe)
    windows = Windows(Stream(texts, tokenizer, recipe.length, apart=False), "source")
    optimise(model, windows, recipe.steps, recipe.lr, recipe.batch, recipe.seed, f"training {name}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def first(texts: list[str], characters: int | None) -> list[str]:
    """As many documents as hold that many characters, the last one cut; None is all."""
    if characters is None:
        return texts
    found: list[str] = []
    for text in texts:
        found.append(text[:characters])
        characters -= len(found[-1])
        if characters <= 0:
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=RECIPES, default="small")
    parser.add_argument("--runs", type=Path, default=Path("runs/paper"))
    options = parser.parse_args()
    model, _ = load_small(options.model, options.runs)
    print(f"{options.model}: {model.num_parameters():,} parameters, in {options.runs / 'models' / options.model}")


if __name__ == "__main__":
    main()
