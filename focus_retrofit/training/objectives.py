"""What training minimises: one term or a weighted sum, such as 'lm-hard' or 'lm-hard + 0.5*distill'."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Seen
from ..controller import Focus
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

        Next-token terms are sums over tokens divided by `items`, a step's tokens; mass is a mean over rows.

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
            lost: list[Tensor] = []
            focus.mode = mode
            if "mass" in self.terms and not number:
                focus.watch = partial(self._note_layer, focus, lost)
            try:
                logits = model(**inputs).logits
            finally:
                focus.watch = None
            if lost:
                total = total + self._note("mass", torch.stack([x.to(total.device) for x in lost]).mean() / batches)
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

    def _note_layer(self, focus: Focus, lost: list[Tensor], seen: Seen) -> None:
        lost.append(layer_loss(seen, focus))


def layer_loss(seen: Seen, focus: Focus) -> Tensor:
    """A layer's lost mass; its gradient is found here and now, so that nothing of the pairs is kept."""
    router, config = focus.router(seen.index), focus.config
    parameters = [router.projection, router.centroids]
    parts = masses(seen, config.window, config.sinks)
    # hooks of gradient checkpointing would run the layer again for this inner gradient
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        soft = router.logits(seen.hidden.detach(), seen.routed.layout.real).softmax(-1)
        value = lost_mass(soft, ((some, part.to(soft.device)) for some, part in parts))
        if not value.requires_grad:
            return value
        slopes = torch.autograd.grad(value, parameters)
        through = sum(((p * slope).sum() for p, slope in zip(parameters, slopes, strict=True)), value.new_zeros(()))
        return value.detach() + through - through.detach()


def shifted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """[B, T, V] and [B, T] -> [N, V] in fp32 and [N]: the predictions that count, and the tokens they are of."""
    targets = labels[:, 1:].to(logits.device)
    known = targets != IGNORED
    return logits[:, :-1][known].float(), targets[known]


def divergence(predictions: Tensor, base: Tensor) -> Tensor:
    """Sum over tokens of KL(base || predictions); predictions [N, V] logits, base [N, V] log-probabilities."""
    return F.kl_div(predictions.log_softmax(-1), base.to(predictions.device), reduction="sum", log_target=True)
