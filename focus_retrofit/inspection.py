"""What the routers make of a text: each token's groups in each layer, which words a group is made of, and how much of
full attention's weight it keeps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from focus_kernels import FocusError

from .attention import Seen
from .training.mass import masses

TOP = 12  # words shown of a group


@torch.inference_mode()
def inspect_text(model: Any, tokenizer: Any, ids: Tensor, *, kept: bool = True) -> dict[str, Any]:
    """Run a retrofitted model over one text [T] as it is served, and say where its tokens went; plain data.

    kept: also find how much of each layer's distant attention weight stays within groups (a dense softmax per layer).
    """
    focus = getattr(model, "focus", None)
    if focus is None:
        raise FocusError("this model has no Focus attention: call retrofit or load_adapter first")
    config = focus.config
    tokens = pieces(tokenizer, ids)
    found: dict[int, float | None] = {}

    def watch(seen: Seen) -> None:
        groups = seen.routed.groups[0]  # [T, k]
        keys = groups if config.match == "share" else groups[:, :1]
        total = inside = 0.0
        for some, weight in masses(seen, config.window, config.sinks):
            matching = (groups[some, None, :, None] == keys[None, :, None, :]).any(-1).any(-1)  # [R, T]
            total, inside = total + float(weight.sum()), inside + float((weight[0] * matching).sum())
        found[seen.index] = inside / total if total else None

    before, focus.watch = focus.watch, watch if kept else None
    try:
        model(ids[None].to(model.device), use_cache=False)
    finally:
        focus.watch = before
    layers = []
    for line in focus.report().layers:
        if not line.shares:
            continue
        groups = focus.all_groups_seen(line.layer)[0]
        layers.append(
            {
                "layer": line.layer,
                "groups": groups.tolist(),
                "shares": line.shares,
                "density": line.density,
                "distant": line.distant,
                "confidence": line.confidence,
                "temperature": line.temperature,
                "kept": found.get(line.layer),
                "top": top_tokens(tokens, groups[:, 0].tolist(), config.num_groups),
            }
        )
    if not layers:
        raise FocusError(f"no layer routed this text of {len(ids)} tokens: it is below min_length {focus.dense_below}")
    names = ("num_groups", "top_k", "match", "window", "sinks")
    return {"tokens": tokens, **{name: getattr(config, name) for name in names}, "layers": layers}


def pieces(tokenizer: Any, ids: Tensor) -> list[str]:
    """Each token as the text it stands for; parts of a character that is spread over tokens show as a box."""
    return [tokenizer.decode([number], clean_up_tokenization_spaces=False) for number in ids.tolist()]


def top_tokens(tokens: list[str], groups: list[int], num_groups: int) -> list[list[dict[str, Any]]]:
    """Per group the tokens that are most its own: frequent there, and rare elsewhere."""
    everywhere = Counter(tokens)
    within: list[Counter[str]] = [Counter() for _ in range(num_groups)]
    for token, group in zip(tokens, groups, strict=True):
        within[group][token] += 1
    found = []
    for counter in within:
        # as often as it is there beyond an even share
        best = sorted(counter, key=lambda token: (everywhere[token] / num_groups - counter[token], token))[:TOP]
        found.append(
            [{"token": x, "count": counter[x], "share": counter[x] / everywhere[x]} for x in best if counter[x] > 1]
        )
    return found
