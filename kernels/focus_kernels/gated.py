"""Gradients for the grouping itself: the forward is the hard one that is served, the backward sees soft groups.

A pair beyond the window has weight m(i, j): 1 where its tokens match, 0 elsewhere. For the backward it is as if m were
g_i . g_j, the overlap of soft assignments g: d(loss)/dm = exp(logit - lse) * dO.(v_j - o_i), of visible pairs and of
others. That is what a FlashAttention backward finds for the logit of a pair when it is handed the served output and
logsumexp. The overlap rides along in extra columns, whose own product is 0:

    q' = (q, g_i, 0)   k' = (k, 0, g_j)   d(q')'s last columns = sum_j dS g_j,   d(k')'s middle ones = sum_i dS g_i
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .api import focus_attention, prepare
from .errors import FocusError
from .layout import token_documents, token_positions


def gated_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Tensor,
    assignments: Tensor,
    *,
    explored: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """`focus_attention` (its options), differentiable in the soft assignments [B, T, K] too, straight through.

    explored [B, T, k'] lists the groups whose pairs get a say in the gradient, best first; by default `groups`, so only
    pairs that were seen. All K cost a full backward and give the exact straight-through gradient; k' cost k'/K of it.
    """
    wanted = (*groups.shape[:2], options["num_groups"])
    if assignments.shape != wanted:
        raise FocusError(f"assignments must be {list(wanted)}, got shape {list(assignments.shape)}")
    if not (torch.is_grad_enabled() and assignments.requires_grad):
        out: Any = focus_attention(query, key, value, groups, **options)
        return out
    out, lse = focus_attention(query, key, value, groups, return_lse=True, **options)
    return _Gate.apply(out, lse, query, key, value, groups if explored is None else explored, assignments, options)


class _Gate(torch.autograd.Function):
    """Hands the output's gradient on as it is, and finds the assignments' on the way."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, lse: Tensor, *inputs: Any) -> Tensor:
        *tensors, options = inputs
        ctx.save_for_backward(out, lse, *tensors)
        ctx.options = options
        return out.view_as(out)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, lse, query, key, value, explored, assignments = ctx.saved_tensors
        found = assignment_gradient(grad, out, lse, query, key, value, explored, assignments, ctx.options)
        return grad, None, None, None, None, None, found, None


@torch.no_grad()
def assignment_gradient(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    explored: Tensor,
    assignments: Tensor,
    options: dict[str, Any],
) -> Tensor:
    """[B, T, K]: d(loss)/d(assignments) over the distant pairs of the explored groups; out and lse are the served."""
    (batch, heads, tokens, size), count = query.shape, assignments.shape[2]
    soft = assignments.to(query.device, query.dtype)[:, None]  # [B, 1, T, K]
    padding, documents = options.get("padding_mask"), options.get("sequence_ids")
    positions = token_positions(token_documents(batch, tokens, padding, documents, query.device))
    sinks = (positions < options.get("sinks", 4))[:, None, :, None]  # everybody sees them: no gate
    # a logit is scale / temperature * q.k: undo it, so that the columns see d(logit)
    per_head = torch.ones(heads, device=query.device, dtype=lse.dtype) / (options.get("scale") or size**-0.5)
    if options.get("temperature") is not None:
        per_head = per_head * torch.as_tensor(options["temperature"], dtype=torch.float64).detach().to(per_head)
    per_head = per_head[None, :, None, None]

    unit = soft.expand(-1, heads, -1, -1) * per_head.to(query.dtype)
    wide_query = torch.cat([query, F.pad(unit, (0, count))], -1)
    seen = soft.masked_fill(sinks, 0).expand(-1, key.shape[1], -1, -1)
    wide_key = torch.cat([key, F.pad(seen, (count, 0))], -1)
    exact = {**options, "scale": options.get("scale") or size**-0.5, "backend": options.get("backend", "auto")}
    exact["backend"] = exact["backend"].partition(":")[0] + ("" if exact["backend"] == "auto" else ":chunked")
    chosen, call = prepare(wide_query, wide_key, value, explored, needs="runner", **exact)
    call = replace(call, engine="chunked", distant_only=True)
    parts = chosen.runner.backward(call, grad.to(out.dtype), out, lse)
    as_query = (parts.query[..., size + count :].to(lse.dtype) * per_head).sum(1)
    as_key = parts.key[..., size : size + count].to(lse.dtype).sum(1).masked_fill(sinks[:, 0], 0)
    return (as_query + as_key).to(assignments)
