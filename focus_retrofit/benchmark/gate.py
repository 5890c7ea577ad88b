"""No speed without correctness: a retrofitted model against its own dense reference, before anything is timed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from focus_kernels import FocusError

from ..attention import Seen

DECODED = 4  # tokens that go through the cache one by one
BEYOND = 384  # tokens beyond the window
# of the logits' spread, in root mean square; a wrong mask is off by 0.1 to 1
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
ROUTED_ALIKE = 0.98


@dataclass
class Routes:
    """The groups that one run chose, for others to take: where two groups tie, rounding may choose either."""

    groups: dict[int, Tensor] = field(default_factory=dict)  # by layer, [B, T, k]
    place: int = 0  # of the next call's first token
    asked: int = 0
    agreed: int = 0

    def record(self, seen: Seen) -> None:
        self.groups[seen.index] = seen.routed.groups

    def follow(self, seen: Seen) -> None:
        own = seen.routed.groups
        seen.routed.groups = self.groups[seen.index][:, self.place : self.place + own.shape[1]]
        self.asked += own.numel()
        self.agreed += int((own == seen.routed.groups).sum())


def ready(model: PreTrainedModel) -> Any:
    """`model.focus`, if the model is such that its speed means something."""
    focus: Any = getattr(model, "focus", None)
    if focus is None:
        raise FocusError("this model is not retrofitted: call retrofit(model, config), or load_adapter, first")
    if model.training or focus.mode != "hard" or not focus.enabled:
        raise FocusError(
            f"speed is measured as served: model.eval(), model.focus.mode = 'hard', enabled (the model is in "
            f"{'training' if model.training else 'eval'} mode, {focus.mode!r}, {'en' if focus.enabled else 'dis'}abled)"
        )
    return focus


def gate_length(model: PreTrainedModel) -> int:
    """Tokens that the gate looks at: enough that most pairs are distant."""
    focus: Any = model.focus
    return focus.config.window + BEYOND + DECODED


@torch.inference_mode()
def check_model(model: PreTrainedModel, ids: Tensor, decode: bool = True) -> float:
    """Raises FocusError unless the last logits of ids [1, T], prefilled at once and (`decode`) token by token after a
    prefill, are those of the dense reference; returns the largest error, relative to the logits' spread."""
    focus = ready(model)
    before = focus.backend, focus.watch, focus.dense_below
    routes, prompt = Routes(), ids.shape[1] - DECODED
    try:
        focus.dense_below = min(focus.dense_below, focus.config.window + 64)  # or there would be nothing to see
        focus.backend, focus.watch = "reference", routes.record
        want = model(input_ids=ids, use_cache=False, logits_to_keep=DECODED).logits
        focus.backend, focus.watch = before[0], routes.follow
        whole = model(input_ids=ids, past_key_values=focus.new_cache(), logits_to_keep=DECODED).logits
        errors = [compare_logits(whole, want, f"prefill of {ids.shape[1]} tokens")]
        if decode:
            cache = focus.new_cache()
            model(input_ids=ids[:, :prompt], past_key_values=cache, logits_to_keep=1)
            found = []
            for routes.place in range(prompt, ids.shape[1]):
                one = ids[:, routes.place : routes.place + 1]
                found.append(model(input_ids=one, past_key_values=cache, logits_to_keep=1).logits)
            errors.append(compare_logits(torch.cat(found, 1), want, f"decoding after {prompt} tokens"))
    finally:
        focus.backend, focus.watch, focus.dense_below = before
    if routes.agreed < ROUTED_ALIKE * routes.asked:
        raise FocusError(
            f"no speed is reported: only {routes.agreed} of {routes.asked} tokens are routed as in the dense reference"
        )
    return max(errors)


def compare_logits(found: Tensor, want: Tensor, what: str) -> float:
    """The error relative to the spread of `want`; raises FocusError above what the precision explains."""
    allowed = TOLERANCE.get(want.dtype, max(TOLERANCE.values()))
    error = float((found.double() - want.double()).square().mean().sqrt() / want.double().std())
    if not error <= allowed:
        raise FocusError(
            f"no speed is reported: the logits of {what} differ from the reference's by {error:.1e} of their spread, "
            f"{allowed:.0e} is allowed in {str(want.dtype).removeprefix('torch.')}"
        )
    return error
