"""Ways to attend, by name, and a model's perplexity with each on the same windows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from focus_kernels import FocusError

from .baselines import own_groups, probing, random_groups, routed, strided_groups
from .perplexity import perplexity

METHODS = {
    "full": "full attention, the base model",
    "window": "window and sinks only",
    "random": "random groups",
    "strided": "strided groups (position modulo K)",
    "focus": "Focus as served",
    "soft": "Focus through the soft training gate (dense)",
}
KINDS = {"full": "full", "window": "baseline", "random": "baseline", "strided": "baseline"}


def parse_methods(text: str) -> list[tuple[str, int | None]]:
    """'full,focus,focus:2' -> [('full', None), ('focus', None), ('focus', 2)]; the number is k."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([a-z]+)(?::([1-9][0-9]*))?\s*", part)
        if match is None or match[1] not in METHODS or (match[2] and match[1] in ("full", "window")):
            raise FocusError(
                f"method {part.strip()!r} is not known; choose from {', '.join(METHODS)}, with ':2' for two groups per "
                "query where there are groups"
            )
        found.append((match[1], int(match[2]) if match[2] else None))
    return found


@contextmanager
def attending(model: Any, method: str, k: int | None = None) -> Iterator[None]:
    """Inside, a retrofitted model attends by another method; what it was is restored."""
    focus = model.focus
    config, before = focus.config, (focus.config.num_groups, focus.config.top_k, focus.mode, focus.backend)
    if k is not None and k > config.num_groups:
        raise FocusError(f"{method}:{k} asks for {k} groups per query; there are {config.num_groups}")
    with ExitStack() as stack:
        try:
            if k is not None:
                config.top_k = k
            if method == "full":
                stack.enter_context(focus.disabled())
            elif method == "window":
                # a group per token is thousands of tiny lists to the fast engines: the dense reference has none
                config.top_k, focus.backend = 1, "reference"
                stack.enter_context(routed(model, _alone(config)))
            elif method in ("random", "strided"):
                groups = random_groups() if method == "random" else strided_groups
                stack.enter_context(routed(model, probing(groups, config.top_k)))
            focus.mode = "soft" if method == "soft" else "hard"
            yield
        finally:
            config.num_groups, config.top_k, focus.mode, focus.backend = before


def _alone(config: Any) -> Callable[[Tensor], Tensor]:
    """Every token in a group of its own, of which there are then as many as tokens."""

    def groups(logits: Tensor) -> Tensor:
        config.num_groups = max(config.num_groups, logits.shape[1])
        return own_groups(logits)

    return groups


def evaluate(
    model: Any,
    windows: Sequence[Tensor],
    methods: Iterable[tuple[str, int | None]],
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """A row per method: perplexity with its standard error, density, and the change against full attention where that
    is among the methods, with the standard error of that difference, window by window."""
    rows: list[dict[str, Any]] = []
    for method, k in methods:
        with attending(model, method, k):
            name = label(method, model.focus.config.top_k if method != "window" else None)
            row = {"method": name, "kind": KINDS.get(method, "focus"), **perplexity(model, windows, name)}
        if method == "soft":
            row["density"] = row["distant"] = 1.0  # dense, gated
        if method in ("full", "window"):
            row.pop("largest_group", None)
        rows.append(row)
        on_row(row)
    compare(rows)
    return rows


def label(method: str, k: int | None) -> str:
    """How a method is called in tables."""
    names = {"full": "full attention", "window": METHODS["window"], "soft": "Focus, soft", "focus": "Focus"}
    name = names.get(method, f"{method} groups")
    return name if method in ("full", "soft") or k is None else f"{name}, k = {k}"


def compare(rows: list[dict[str, Any]]) -> None:
    """Adds to each row how its perplexity differs from full attention's on the same windows, paired."""
    import torch

    full = next((row for row in rows if row["kind"] == "full"), None)
    if full is None:
        return
    for row in rows:
        difference = torch.tensor(row["losses"]) - torch.tensor(full["losses"])
        row["over_full"] = float(difference.mean().exp() - 1)
        row["over_full_error"] = (
            float(difference.std() / len(difference) ** 0.5 * difference.mean().exp()) if len(difference) > 1 else None
        )
