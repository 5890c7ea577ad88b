"""Fit each router by itself to what its layer's full attention looks at: the text is read once, and the routers learn
from it many times, at no cost of the model's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from focus_kernels import FocusError

from ..attention import Seen
from ..router import Router
from .mass import Weighed, lost_mass, masses, sensitivities
from .options import WEIGHTS
from .warm import read

Shown = list[tuple[Tensor, Tensor, Tensor | None]]  # hidden [B, T, d], weights [B, T, T], real [B, T]


def fit_routers(
    model: nn.Module,
    batches: Iterable[dict[str, Tensor]],
    *,
    weights: str = "sensitivity",
    steps: int = 300,
    lr: float = 1e-3,
    memory: float | None = None,
    seed: int = 0,
) -> dict[int, float]:
    """Let every layer's groups keep the pairs that matter in a calibration text; returns what each loses at the end.

    weights: 'mass' (attention weights; forward passes only) or 'sensitivity' (what the loss feels; one backward pass
    for each batch, which then needs labels). memory: bytes for what is kept of the text, half precision, tokens^2 per
    window and layer, by default half of what is free; where layers need more together, the text is read several times.
    """
    if weights not in WEIGHTS:
        raise FocusError(f"weights is {weights!r}; choose one of {', '.join(map(repr, WEIGHTS))}")
    focus: Any = model.focus
    batches, lost = list(batches), {}
    room = psutil.virtual_memory().available / 2 if memory is None else memory
    for indices in _rounds(focus, batches, room):
        shown: dict[int, Shown] = {index: [] for index in indices}
        read(focus, batches, _keeper(focus, shown, weights), "reading", backward=weights == "sensitivity")
        for index in tqdm(indices, desc="fitting", unit=" layers", leave=False):
            kept = shown.pop(index)
            lost[index] = fit_router(focus.router(index), kept, steps, lr, torch.Generator().manual_seed(seed))
    return lost


def fit_router(router: Router, shown: Shown, steps: int, lr: float, generator: torch.Generator) -> float:
    """Adam on one batch of the text at a time, in random order; then potentials are the mean over all of it."""
    optimizer = torch.optim.Adam([router.projection, router.centroids], lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 10) * (1 - n / steps) ** 0.5)
    training, recent = router.training, 0.0
    router.train()
    with torch.enable_grad():
        for number in _order(len(shown), steps, generator):
            router.begin()
            loss = _loss(router, *shown[number])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            recent = 0.9 * recent + 0.1 * float(loss.detach()) if recent else float(loss.detach())
    optimizer.zero_grad()
    router.batch = None
    router.train(training)
    if router.config.balance == "potentials":
        router.fitting, router.fitted = True, 0
        with torch.no_grad():
            for hidden, _, real in shown:
                router.logits(hidden.to(router.projection.device).float(), real)
        router.fitting = False
    return recent


def _loss(router: Router, hidden: Tensor, weight: Tensor, real: Tensor | None) -> Tensor:
    soft = router.logits(hidden.to(router.projection.device).float(), real).softmax(-1)
    return lost_mass(soft, iter([(slice(0, weight.shape[1]), weight.to(soft.device))]))


def _order(count: int, steps: int, generator: torch.Generator) -> Iterator[int]:
    """`steps` numbers below `count`, each as often as the others."""
    drawn = 0
    while drawn < steps:
        for number in torch.randperm(count, generator=generator).tolist()[: steps - drawn]:
            yield number
            drawn += 1


def _keeper(focus: Any, shown: dict[int, Shown], kind: str) -> Callable[[Seen], Any]:
    """For `focus.watch`: keeps a layer's input and the weights of its pairs, now or once its gradient comes."""
    config = focus.config

    def keep(seen: Seen, parts: Weighed) -> None:
        found = torch.cat([part.cpu() for _, part in parts], 1)
        found *= 1e4 / found.amax((1, 2), keepdim=True).clamp_min(1e-30)  # half precision has a narrow range
        real = seen.routed.layout.real
        shown[seen.index].append(
            (seen.hidden.detach().half().cpu(), found.half(), None if real is None else real.cpu())
        )

    def watch(seen: Seen) -> Callable[[Tensor], None] | None:
        if seen.index not in shown:
            return None
        if kind == "mass":
            keep(seen, masses(seen, config.window, config.sinks))
            return None

        def after(out: Tensor) -> None:
            then = out.detach()
            out.register_hook(lambda grad: keep(seen, sensitivities(seen, then, grad, config.window, config.sinks)))

        return after

    return watch


def _rounds(focus: Any, batches: list[dict[str, Tensor]], memory: float) -> Iterator[list[int]]:
    """Layers whose share of the text fits into memory together."""
    width = focus.router(focus.layer_indices[0]).projection.shape[0]
    shapes = [batch["input_ids"].shape for batch in batches]
    each = sum(2 * rows * tokens * (tokens + width) for rows, tokens in shapes)
    if not each:
        raise FocusError("the calibration text is empty: give batches with input_ids")
    many = int(memory // each)
    if not many:
        raise FocusError(
            f"one layer's weights over this text take {each / 1e9:.1f} GB, memory is {memory / 1e9:.1f} GB: use less "
            "or shorter text, or the trainer's objective 'mass', which keeps nothing"
        )
    layers = focus.layer_indices
    for start in range(0, len(layers), many):
        yield layers[start : start + many]
