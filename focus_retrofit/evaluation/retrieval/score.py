"""Whether a model would give an answer, from one forward pass over prompt and answer: no cache, so any attention."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from .item import Item


@torch.inference_mode()
def score_items(model: Any, items: Sequence[Item]) -> tuple[list[dict[str, float]], float]:
    """For each item, all of one length: `exact` (greedy decoding would say the answer: every token of it is the
    likeliest after those before), `tokens` (share of them that are), `choice` (the answer is the likeliest of the
    candidates; exact without any) and `nll` (mean over the answer). And the seconds of the forward pass."""
    ids = torch.tensor([item.ids for item in items], device=model.device)
    keep = max(len(item.answer) for item in items)
    start = time.perf_counter()
    logits = model(ids[:, :-1], use_cache=False, logits_to_keep=keep).logits.float()
    if ids.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return [_score(item, row[-len(item.answer) :]) for item, row in zip(items, logits, strict=True)], seconds


def _score(item: Item, logits: torch.Tensor) -> dict[str, float]:
    answer = torch.tensor(item.answer, device=logits.device)
    right = logits.argmax(-1) == answer
    exact = float(right.all())
    choice = exact
    if item.candidates:
        best = int(logits[0, list(item.candidates)].argmax())
        choice = float([item.candidates[best]] == item.answer)
    nll = torch.nn.functional.cross_entropy(logits, answer)
    return {"exact": exact, "tokens": float(right.float().mean()), "choice": choice, "nll": float(nll)}


def density_of(model: Any) -> float:
    """Share of causal pairs that the last forward pass computed, over the layers that Focus has."""
    focus = getattr(model, "focus", None)
    if focus is None or not focus.enabled or focus.mode == "soft":
        return 1.0
    found = [line.density for line in focus.report().layers if line.density is not None]
    return sum(found) / len(found) if found else 1.0
