"""Perplexity of a model over windows of text, beside the density that was really computed for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm


@torch.inference_mode()
def perplexity(model: Any, windows: Iterable[Tensor], what: str) -> dict[str, Any]:
    """exp of the mean loss over windows [T], with a standard error from the windows; with Focus also the density, and
    the largest share that a group has in a layer."""
    focus = getattr(model, "focus", None)
    losses, densities = [], []
    counts: dict[int, Any] = {}
    for window in tqdm(windows, desc=what, unit=" windows", leave=False):
        ids = window[None].to(model.device)
        losses.append(model(ids, labels=ids, use_cache=False).loss.item())
        if focus is None or not focus.enabled:
            continue
        lines = focus.report().layers
        densities.append([sum(getattr(x, part) or 0.0 for x in lines) / len(lines) for part in ("density", "distant")])
        for index in focus.layer_indices:
            seen = torch.bincount(focus.groups_seen(index).flatten(), minlength=focus.config.num_groups)
            counts[index] = counts.get(index, 0) + seen
    found = torch.tensor(losses)
    value = found.mean().exp().item()
    error = value * (found.std() / len(found) ** 0.5).item() if len(found) > 1 else None
    result: dict[str, Any] = {"perplexity": value, "standard_error": error, "losses": losses}
    if densities:
        result["density"], result["distant"] = torch.tensor(densities).mean(0).tolist()
        result["largest_group"] = max(float(count.max() / count.sum()) for count in counts.values())
    else:
        result["density"] = result["distant"] = 1.0
    return result
