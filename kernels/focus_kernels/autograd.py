"""The merged backward: each partial call is differentiated against the *merged* output and logsumexp.

FlashAttention drops the gradient of its logsumexp, so autograd through a merge would be silently wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .call import Call, Gradients, Runner


def run(runner: Runner, call: Call) -> tuple[Tensor, Tensor]:
    """out [B, Hq, T, Dv] and lse [B, Hq, T], differentiable in query, key, value, temperature and sink logits."""
    if not call.needs_grad:
        return runner.forward(call)
    problem = call.problem
    return _Focus.apply(call.query, call.key, call.value, problem.temperature, problem.sink_logits, runner, call)


class _Focus(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        temperature: Tensor | None,
        sink_logits: Tensor | None,
        runner: Runner,
        call: Call,
    ) -> tuple[Tensor, Tensor]:
        out, lse = runner.forward(call)
        ctx.save_for_backward(query, key, value, temperature, sink_logits, out, lse)
        ctx.runner = runner
        # what the call holds besides the tensors that autograd tracks
        nothing = query.new_empty(0)
        ctx.rest = replace(call, query=nothing, key=nothing, value=nothing)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        query, key, value, temperature, sink_logits, out, lse = ctx.saved_tensors
        grad, grad_lse = grads
        problem = replace(ctx.rest.problem, temperature=temperature, sink_logits=sink_logits)
        call = replace(ctx.rest, query=query, key=key, value=value, problem=problem)
        found: Gradients | None = None
        delta = torch.zeros_like(lse)
        if grad is not None:
            found = ctx.runner.backward(call, grad.to(out.dtype), out, lse)
            delta += (grad.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
        if grad_lse is not None:
            found = _add(found, ctx.runner.backward(*_through_lse(call, grad_lse, out), lse))
            delta -= grad_lse
        if found is None:
            return (None,) * 7
        d_temperature = d_sinks = None
        if temperature is not None and ctx.needs_input_grad[3]:
            per_head = -found.slope / temperature.to(found.slope.dtype)
            d_temperature = (per_head.sum() if temperature.dim() == 0 else per_head).to(temperature.dtype)
        if sink_logits is not None and ctx.needs_input_grad[4]:
            share = torch.exp(sink_logits.to(lse.dtype)[:, None] - lse).masked_fill(lse == float("-inf"), 0.0)
            d_sinks = -(share * delta).sum((0, 2)).to(sink_logits.dtype)
        return found.query, found.key, found.value, d_temperature, d_sinks, None, None


def _through_lse(call: Call, grad_lse: Tensor, out: Tensor) -> tuple[Call, Tensor, Tensor]:
    """The same pairs with d(logit) = P * grad_lse: what a backward computes for V = 0, dO = (1, 0, ..) and
    O = (-grad_lse, 0, ..), since d(logit) = P * (dO.V - dO.O)."""
    ones, minus = torch.zeros_like(out), torch.zeros_like(out)
    ones[..., 0] = 1
    minus[..., 0] = -grad_lse.to(out.dtype)
    return replace(call, value=torch.zeros_like(call.value)), ones, minus


def _add(first: Gradients | None, lse_part: Gradients) -> Gradients:
    """Query, key and slope of both; the value has no part in the logsumexp."""
    if first is None:
        return lse_part._replace(value=torch.zeros_like(lse_part.value))
    return Gradients(first.query + lse_part.query, first.key + lse_part.key, first.value, first.slope + lse_part.slope)
