"""What training minimises: one term or a weighted sum, such as 'lm-hard' or 'lm-hard + 0.5*distill'."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Seen
from ..controller import Focus
from ..router import Router
from .data import IGNORED
from .mass import lost_mass, masses
from .options import parse_objective


class Objective:
    """Computes a batch's loss; its terms are kept in `values` for the log."""

    def __init__(self, text: str):
        self.terms = parse_objective(text)
        self.values: dict[str, Tensor] = {}

    @property
    def modes(self) -> list[str]:
        """The forward passes it takes, one for each mode."""
        found = [mode for term, mode in (("lm", "soft"), ("lm-hard", "hard")) if term in self.terms]
        if not found:
            found = ["hard"] if "distill" in self.terms else ["dense"]
        return found

    def __call__(
        self, model: nn.Module, focus: Focus, inputs: dict[str, Any], items: Tensor | float, batches: int = 1
    ) -> Tensor:
        """The loss of a batch, one of `batches` that share a step. `model` may be wrapped.

        Next-token terms are sums over tokens divided by `items`, a step's tokens; others means over rows and layers.

        `focus.mode` stays that of the last pass, so that a checkpointed layer runs again in the backward as it ran.
        """
        inputs = {**inputs, "use_cache": False}
        labels = inputs.pop("labels")
        base = None
        if "distill" in self.terms:
            with torch.no_grad(), focus.disabled():
                base = focus.model(**inputs).logits.float().log_softmax(-1)
        self.values, total = {}, torch.zeros((), device=labels.device)
        for number, mode in enumerate(self.modes):
            focus.mode = mode
            layers: dict[str, list[Tensor]] = {term: [] for term in LAYER_TERMS if term in self.terms and not number}
            if layers:
                focus.watch = partial(note_layer, focus, layers)
            try:
                logits = model(**inputs).logits
            finally:
                focus.watch = None
            for term, found in layers.items():
                total = total + self._note(term, torch.stack([x.to(total.device) for x in found]).mean() / batches)
            if mode == "dense":
                continue
            predictions, targets = shifted(logits, labels)
            if (term := "lm" if mode == "soft" else "lm-hard") in self.terms:
                total = total + self._note(term, F.cross_entropy(predictions, targets, reduction="sum") / items)
            if base is not None and not number:
                total = total + self._note("distill", divergence(predictions, shifted(base, labels)[0]) / items)
        return total

    def _note(self, term: str, value: Tensor) -> Tensor:
        self.values[term] = value.detach()
        return self.terms[term] * value


def note_layer(focus: Focus, layers: dict[str, list[Tensor]], seen: Seen) -> None:
    """For `focus.watch`: a layer's terms. Gradients are found here and now, so that nothing of the pairs is kept."""
    router = focus.router(seen.index)
    # hooks of gradient checkpointing would run the layer again for this inner gradient
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        for term, found in layers.items():
            value = LAYER_TERMS[term](focus, router, seen)
            if value.requires_grad:
                parameters = [router.projection, router.centroids]
                slopes = torch.autograd.grad(value, parameters)
                parts = [(p * slope).sum() for p, slope in zip(parameters, slopes, strict=True)]
                through = torch.stack(parts).sum()
                value = value.detach() + through - through.detach()
            found.append(value)


def layer_mass(focus: Focus, router: Router, seen: Seen) -> Tensor:
    soft = router.logits(seen.hidden.detach(), seen.routed.layout.real).softmax(-1)
    parts = masses(seen, focus.config.window, focus.config.sinks)
    return lost_mass(soft, ((some, part.to(soft.device)) for some, part in parts))


def layer_balance(focus: Focus, router: Router, seen: Seen) -> Tensor:
    return router.unevenness(seen.hidden.detach(), seen.routed.layout.real)


LAYER_TERMS = {"mass": layer_mass, "balance": layer_balance}


def shifted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """[B, T, V] and [B, T] -> [N, V] in fp32 and [N]: the predictions that count, and the tokens they are of."""
    targets = labels[:, 1:].to(logits.device)
    known = targets != IGNORED
    if bool(known.all()):  # a selection would copy a vocabulary for each token
        return logits[:, :-1].flatten(0, 1).float(), targets.flatten()
    return logits[:, :-1][known].float(), targets[known]


def divergence(predictions: Tensor, base: Tensor) -> Tensor:
    """Sum over tokens of KL(base || predictions); predictions [N, V] logits, base [N, V] log-probabilities."""
    return F.kl_div(predictions.log_softmax(-1), base.to(predictions.device), reduction="sum", log_target=True)
