"""No speed of a training step without its gradients: against autograd of the dense contract, in float64."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from focus_kernels import FocusError
from focus_kernels.reference import matches

from ..config import FocusConfig
from .gate import TOLERANCE
from .training_steps import FULL_STEP, Routed, Step

BEYOND = 192  # tokens beyond the window
PARTS = ("output", "gradient of queries", "gradient of keys", "gradient of values", "gradient of scores")


def check_training(layer: Routed, steps: list[Step], focus: FocusConfig) -> float:
    """Raises FocusError unless output and gradients of each step, and of full attention, are the oracle's; returns the
    largest error, relative to the size of what it should be."""
    layer = replace(layer, tokens=layer.window + BEYOND)
    allowed, worst = TOLERANCE[layer.dtype], 0.0
    for step in (FULL_STEP, *steps):
        want = _oracle(layer, step, focus)
        for what, one, other in zip(PARTS, _found(layer, step), want, strict=True):
            error = float((one.double() - other).norm() / other.norm().clamp_min(1e-12))
            if not error <= allowed:
                raise FocusError(
                    f"no speed is reported: {step.name} at {layer.tokens} tokens, its {what} differs from the "
                    f"reference's by {error:.1e} of its size, {allowed:.0e} is allowed"
                )
            worst = max(worst, error)
    return worst


def _found(layer: Routed, step: Step) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in (*layer.tensors, layer.scores)]
    return _with_gradients(step.attend(layer, *leaves), leaves)


def _with_gradients(out: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of a fixed weighing of it; 0 where none arrives."""
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = torch.autograd.grad((out * weights.to(out)).sum(), leaves, materialize_grads=True, allow_unused=True)
    return [out.detach(), *found]


def _oracle(layer: Routed, step: Step, focus: FocusConfig) -> list[Tensor]:
    """What a step must give: all pairs written out, gradients by autograd."""
    leaves = [x.detach().double().requires_grad_() for x in (*layer.tensors, layer.scores)]
    q, k, v, scores = leaves
    k, v = (x.repeat_interleave(layer.q_heads // layer.kv_heads, 1) for x in (k, v))
    place = torch.arange(layer.tokens, device=q.device)
    distance = place[:, None] - place
    causal, distant, sink = distance >= 0, distance > layer.window, place < layer.sinks
    logits = q @ k.mT * layer.size**-0.5
    weight = causal.double()[None]  # [1, T, T], of exp(logits)
    soft = scores.softmax(-1)
    overlap, gated = soft @ soft.mT, causal & distant & ~sink
    if step.explore:  # hard forwards, soft backwards
        explored = scores.detach().topk(step.explore, -1).indices
        weight = weight * (~distant | sink | matches(layer.groups, layer.groups, layer.match))
        weight = weight + (overlap - overlap.detach()) * (gated & matches(explored, explored, layer.match))
    elif step is not FULL_STEP and focus.gate == "log":
        weight = weight * torch.where(gated, overlap, 1)
    elif step is not FULL_STEP:
        logits = torch.where(gated, logits * torch.sigmoid(focus.gate_strength * overlap), logits)
    mass = logits.exp() * weight[:, None]
    return _with_gradients(mass @ v / mass.sum(-1, keepdim=True), leaves)
