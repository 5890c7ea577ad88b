"""Fit each router by itself to the pairs that matter in its layer: the text is read a few times, each time with the
routers found so far, and the routers learn from what was seen many times, at no cost of the model's."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from tqdm.auto import tqdm

from focus_kernels import FocusError
from focus_kernels.spill import mapped

from ..attention import Seen
from ..config import FocusConfig
from ..controller import Focus
from .mass import Weighed, gains, masses, sensitivities
from .objectives import divergence, shifted
from .options import WEIGHTS
from .search import Search, Text, fit_router
from .warm import Loss, read

SLICE = 1024  # tokens whose predictions are compared together


def fit_routers(
    model: nn.Module,
    batches: Iterable[dict[str, Tensor]],
    *,
    weights: str = "gain",
    rounds: int = 1,
    trust: float = 0.0,
    how: Search | None = None,
    memory: float | None = None,
    seed: int = 0,
) -> dict[int, float]:
    """Let every layer's groups keep the pairs that matter in a calibration text; returns what each loses at the end.

    weights of pairs: 'mass' (of full attention; forward passes only), 'sensitivity' (how the loss feels a pair in full
    attention) or 'gain' (how much the loss falls by a pair, where only others are seen); these take a backward pass for
    each batch, and labels. A round reads its share of the batches; gains are those with random groups in the first,
    with the groups found so far in later ones. trust: the share of the base model's predictions in what 'gain' takes
    for right, beside the text's own next tokens. memory: bytes for what is kept of the text, tokens^2 per window and
    layer, by default half of what is free; what is more than that goes to temporary files.
    """
    if weights not in WEIGHTS:
        raise FocusError(f"weights is {weights!r}; choose one of {', '.join(map(repr, WEIGHTS))}")
    focus: Any = model.focus
    batches, lost, how = list(batches), dict[int, float](), how or Search()
    if not batches:
        raise FocusError("the calibration text is empty: give batches with input_ids")
    losses: dict[str, Loss] = {"sensitivity": next_token_loss, "gain": partial(served_loss, trust=trust)}
    kept = _Kept(focus.layer_indices, psutil.virtual_memory().available / 2 if memory is None else memory)
    for number in range(min(rounds, len(batches))):
        keeper = _keeper(focus, kept, weights, None if number else seed)
        read(focus, batches[number::rounds], keeper, f"reading, round {number + 1}", loss=losses.get(weights))
        for index in tqdm(focus.layer_indices, desc="fitting", unit=" layers", leave=False):
            generator = torch.Generator().manual_seed(seed + number)
            lost[index] = fit_router(focus.router(index), kept.texts(index), how, generator)
    return lost


class _Kept:
    """What layers were given and what their pairs weigh, text by text, in half precision; of pairs the earlier keys."""

    def __init__(self, layers: Iterable[int], memory: float):
        self.room = memory
        self.shown: dict[int, list[tuple[Tensor, Tensor]]] = {index: [] for index in layers}

    def add(self, index: int, hidden: Tensor, weights: Tensor) -> None:
        """hidden [T, d], weights [T, T]"""
        weights = weights[_earlier(len(weights))].bfloat16()  # fp16 has too narrow a range
        self.shown[index].append((self._put(hidden.half()), self._put(weights)))

    def _put(self, tensor: Tensor) -> Tensor:
        self.room -= tensor.nbytes
        if self.room > 0:
            return tensor.cpu()
        file = mapped(tempfile.gettempdir(), tuple(tensor.shape), tensor.dtype, "a fit's text")
        file.tensor.copy_(tensor)
        file.release()
        return file.tensor

    def texts(self, index: int) -> list[Text]:
        """Of a layer, in full precision."""
        found = []
        for hidden, weights in self.shown[index]:
            whole = torch.zeros(len(hidden), len(hidden))
            whole[_earlier(len(hidden))] = weights.float()
            found.append((hidden.float(), whole))
        return found


def _earlier(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril_(-1)


def _keeper(focus: Any, kept: _Kept, kind: str, seed: int | None) -> Callable[[Seen], Any]:
    """For `focus.watch`: keeps a layer's input and the weights of its pairs, now or once its gradient comes. Groups are
    random with a `seed`, the routers' without."""
    config = focus.config
    calls: Counter[int] = Counter()

    def keep(seen: Seen, parts: Weighed) -> None:
        found = torch.cat([part.cpu() for _, part in parts], 1)
        real, hidden = seen.routed.layout.real, seen.hidden.detach().cpu()
        for row in range(len(found)):
            some = slice(None) if real is None else real[row].cpu()
            kept.add(seen.index, hidden[row, some], found[row, some][:, some])

    def watch(seen: Seen) -> Callable[[Tensor], None] | None:
        if kind == "gain":
            plainly(seen)
            if seed is not None:
                scatter(seen, config, hash((seed, seen.index, calls[seen.index])))
            calls[seen.index] += 1
        if kind == "mass":
            keep(seen, masses(seen, config.window, config.sinks))
            return None

        ends = (config.window, config.sinks)
        if kind == "gain":
            return once_differentiated(lambda out, grad: keep(seen, gains(seen, out, grad, *ends, config.match)))
        return once_differentiated(lambda out, grad: keep(seen, sensitivities(seen, out, grad, *ends)))

    return watch


def once_differentiated(note: Callable[[Tensor, Tensor], None]) -> Callable[[Tensor], None]:
    """For `focus.watch` to return: `note` is given a layer's output and, once it is there, its gradient."""

    def after(out: Tensor) -> None:
        then = out.detach()
        out.register_hook(lambda grad: note(then, grad))

    return after


def plainly(seen: Seen) -> None:
    """A layer attends at temperature 1, and its router learns nothing of it."""
    seen.routed.logits = seen.routed.logits.detach()
    seen.routed.per_token = seen.options["temperature"] = None


def scatter(seen: Seen, config: FocusConfig, seed: int) -> None:
    """Random groups for a layer's tokens in place of its router's."""
    routed, generator = seen.routed, torch.Generator().manual_seed(seed)
    drawn = torch.rand(routed.logits.shape, generator=generator).topk(config.k_of(seen.index), -1).indices
    routed.groups = drawn.to(routed.groups.device)


def next_token_loss(focus: Focus, inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
    predictions, targets = shifted(focus.model(**inputs, use_cache=False).logits, labels)
    return F.cross_entropy(predictions, targets, reduction="sum")


def served_loss(focus: Focus, inputs: dict[str, Tensor], labels: Tensor, trust: float) -> Tensor:
    """Of what is served, to the text's next tokens, and with a weight of `trust` to what full attention predicts.
    Probabilities are there for a slice of the tokens at a time, and once more in the backward: of long windows with a
    large vocabulary they would take more memory than the model."""
    base: Sequence[Tensor | None] | None = None
    if trust:
        with torch.no_grad(), focus.disabled():
            base = shifted(focus.model(**inputs, use_cache=False).logits, labels)[0].split(SLICE)
    focus.mode = "hard"
    predictions, targets = (x.split(SLICE) for x in shifted(focus.model(**inputs, use_cache=False).logits, labels))
    parts = zip(predictions, targets, base or [None] * len(targets), strict=True)
    return torch.stack([checkpoint(_slice_loss, *part, trust, use_reentrant=False) for part in parts]).sum()


def _slice_loss(predictions: Tensor, targets: Tensor, base: Tensor | None, trust: float) -> Tensor:
    loss = (1 - trust) * F.cross_entropy(predictions, targets, reduction="sum")
    return loss if base is None else loss + trust * divergence(predictions, base.log_softmax(-1))
