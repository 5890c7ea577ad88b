"""Fit each router by itself to what its layer's full attention looks at: the text is read once, and the routers learn
from it many times, at no cost of the model's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from focus_kernels import FocusError

from ..attention import Seen
from ..balance import fit_potentials
from ..config import FocusConfig
from ..controller import Focus
from ..router import Router
from .mass import Weighed, gains, lost_of, masses, sensitivities
from .objectives import divergence, shifted
from .options import WEIGHTS
from .warm import read

Shown = list[tuple[Tensor, Tensor, Tensor | None]]  # hidden [B, T, d], weights [B, T, T], real [B, T]


def fit_routers(
    model: nn.Module,
    batches: Iterable[dict[str, Tensor]],
    *,
    weights: str = "gain",
    steps: int = 800,
    lr: float = 2e-3,
    balance: float = 0.3,
    memory: float | None = None,
    seed: int = 0,
) -> dict[int, float]:
    """Let every layer's groups keep the pairs that matter in a calibration text; returns what each loses at the end.

    weights of pairs: 'mass' (of full attention; forward passes only), 'sensitivity' (how the loss feels a pair in full
    attention; one backward pass for each batch) or 'gain' (how much closer to full attention's predictions the model
    comes by a pair, where groups are random; two forward passes and a backward one); both need labels. balance: of
    `Router.unevenness`. memory: bytes for what is kept of the text, half precision, tokens^2 per window and layer, by
    default half of what is free; where layers need more together, the text is read several times.
    """
    if weights not in WEIGHTS:
        raise FocusError(f"weights is {weights!r}; choose one of {', '.join(map(repr, WEIGHTS))}")
    focus: Any = model.focus
    batches, lost = list(batches), {}
    room = psutil.virtual_memory().available / 2 if memory is None else memory
    for indices in _rounds(focus, batches, room):
        shown: dict[int, Shown] = {index: [] for index in indices}
        read(focus, batches, _keeper(focus, shown, weights, seed), "reading", loss=LOSSES.get(weights))
        for index in tqdm(indices, desc="fitting", unit=" layers", leave=False):
            kept = shown.pop(index)
            generator = torch.Generator().manual_seed(seed)
            lost[index] = fit_router(focus.router(index), kept, steps, lr, balance, generator)
    return lost


def fit_router(
    router: Router, shown: Shown, steps: int, lr: float, balance: float, generator: torch.Generator
) -> float:
    """Adam on one batch of the text at a time, in random order; then potentials are those of all of it."""
    optimizer = torch.optim.Adam([router.projection, router.centroids], lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 10) * (1 - n / steps) ** 0.5)
    training, recent = router.training, 0.0
    device = router.projection.device
    unit = torch.stack([weight.float().abs().sum((1, 2)).mean() for _, weight, _ in shown]).mean().clamp_min(1e-20)
    unit = unit.to(device)
    ready = [(hidden.float(), _both(weight), real) for hidden, weight, real in shown]  # where it was kept, not on a GPU
    router.train()
    with torch.enable_grad():
        for number in _order(len(ready), steps, generator):
            router.begin()
            hidden, both, real = ready[number]
            hidden = hidden.to(device)
            loss = lost_of(router.logits(hidden, real).softmax(-1), both.to(device), unit)
            optimizer.zero_grad()
            (loss + balance * router.unevenness(hidden, real)).backward()
            optimizer.step()
            schedule.step()
            recent = 0.9 * recent + 0.1 * float(loss.detach()) if recent else float(loss.detach())
    optimizer.zero_grad()
    router.batch = None
    router.train(training)
    if router.config.balance == "potentials":
        with torch.no_grad():
            scores = [(router.scores(hidden), real) for hidden, _, real in ready]
            known = torch.cat([x.flatten(0, 1) if real is None else x[real.to(x.device)] for x, real in scores])
            router.potentials.copy_(fit_potentials(known, router.potentials))
    return recent


def _both(weight: Tensor) -> Tensor:
    """W + W' [B, T, T], in full precision: made once, read in every step."""
    weight = weight.float()
    return weight + weight.mT


def _order(count: int, steps: int, generator: torch.Generator) -> Iterator[int]:
    """`steps` numbers below `count`, each as often as the others."""
    drawn = 0
    while drawn < steps:
        for number in torch.randperm(count, generator=generator).tolist()[: steps - drawn]:
            yield number
            drawn += 1


def _keeper(focus: Any, shown: dict[int, Shown], kind: str, seed: int) -> Callable[[Seen], Any]:
    """For `focus.watch`: keeps a layer's input and the weights of its pairs, now or once its gradient comes."""
    config = focus.config
    calls: Counter[int] = Counter()

    def keep(seen: Seen, parts: Weighed) -> None:
        found = torch.cat([part.to("cpu", torch.bfloat16) for _, part in parts], 1)  # fp16 has too narrow a range
        real = seen.routed.layout.real
        shown[seen.index].append((seen.hidden.detach().half().cpu(), found, None if real is None else real.cpu()))

    def watch(seen: Seen) -> Callable[[Tensor], None] | None:
        if kind == "gain":
            scatter(seen, config, hash((seed, seen.index, calls[seen.index])))
            calls[seen.index] += 1
        if seen.index not in shown:
            return None
        if kind == "mass":
            keep(seen, masses(seen, config.window, config.sinks))
            return None

        def after(out: Tensor) -> None:
            then, ends = out.detach(), (config.window, config.sinks)
            if kind == "gain":
                out.register_hook(lambda grad: keep(seen, gains(seen, then, grad, *ends, config.match)))
            else:
                out.register_hook(lambda grad: keep(seen, sensitivities(seen, then, grad, *ends)))

        return after

    return watch


def scatter(seen: Seen, config: FocusConfig, seed: int) -> None:
    """Random groups for a layer's tokens in place of its router's, at temperature 1."""
    routed, generator = seen.routed, torch.Generator().manual_seed(seed)
    drawn = torch.rand(routed.logits.shape, generator=generator).topk(config.top_k, -1).indices
    routed.groups, routed.logits = drawn.to(routed.groups.device), routed.logits.detach()
    routed.per_token = seen.options["temperature"] = None


def next_token_loss(focus: Focus, inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
    predictions, targets = shifted(focus.model(**inputs, use_cache=False).logits, labels)
    return F.cross_entropy(predictions, targets, reduction="sum")


def divergence_from_base(focus: Focus, inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
    """How far the predictions with groups are from those without."""
    with torch.no_grad(), focus.disabled():
        base = focus.model(**inputs, use_cache=False).logits.float().log_softmax(-1)
    focus.mode = "hard"
    predictions, _ = shifted(focus.model(**inputs, use_cache=False).logits, labels)
    return divergence(predictions, shifted(base, labels)[0])


LOSSES = {"sensitivity": next_token_loss, "gain": divergence_from_base}


def _rounds(focus: Any, batches: list[dict[str, Tensor]], memory: float) -> Iterator[list[int]]:
    """Layers whose share of the text fits into memory together."""
    width = focus.router(focus.layer_indices[0]).projection.shape[0]
    shapes = [batch["input_ids"].shape for batch in batches]
    each = sum(2 * rows * tokens * (tokens + width) for rows, tokens in shapes)
    if not each:
        raise FocusError("the calibration text is empty: give batches with input_ids")
    many = int(memory // each) - 2  # the layer that is fitted is held in full precision too
    if many < 1:
        raise FocusError(
            f"one layer's weights over this text take {3 * each / 1e9:.1f} GB, memory is {memory / 1e9:.1f} GB: use "
            "less or shorter text, or the trainer's objective 'mass', which keeps nothing"
        )
    layers = focus.layer_indices
    for start in range(0, len(layers), many):
        yield layers[start : start + many]
