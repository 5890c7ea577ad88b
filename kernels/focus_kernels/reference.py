"""The contract as one dense mask: slow, any dtype, differentiable by autograd. Everything else is compared with it."""

from __future__ import annotations

import torch
from torch import Tensor

from .contain import NAN, blank
from .layout import token_documents, token_positions
from .problem import Problem, check_groups, check_problem, check_tensors


def matches(query_groups: Tensor, key_groups: Tensor, match: str) -> Tensor:
    """[..., Tq, k] and [..., Tk, k] group lists -> [..., Tq, Tk]: may the query look at this key from afar?"""
    if match == "probe":
        key_groups = key_groups[..., :1]
    return (query_groups[..., :, None, :, None] == key_groups[..., None, :, None, :]).any(-1).any(-1)


def visible(positions: Tensor, documents: Tensor, groups: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """[B, T, T] masks: which pairs are visible, and which of them are distant."""
    distance = positions[:, :, None] - positions[:, None, :]
    real = (documents[:, :, None] == documents[:, None, :]) & (documents >= 0)[:, None, :]
    distant = distance > problem.window
    sink = (positions < problem.sinks)[:, None, :]
    return real & (distance >= 0) & (~distant | sink | matches(groups, groups, problem.match)), distant


def reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Tensor,
    *,
    num_groups: int,
    window: int,
    sinks: int = 4,
    match: str = "probe",
    scale: float | None = None,
    temperature: float | Tensor | None = None,
    temperature_scope: str = "distant",
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    padding_mask: Tensor | None = None,
    sequence_ids: Tensor | None = None,
    backend: str = "reference",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Dense Focus attention, the oracle; takes the arguments of `focus_attention` (`backend` is not looked at).

    Rows of padding give 0, with a logsumexp of -inf; rows that see a key or value that is not finite give NaN.
    """
    check_tensors(query, key, value, groups)
    check_groups(groups, num_groups)
    problem = check_problem(
        q_heads=query.shape[1],
        head_size=query.shape[3],
        device=query.device,
        top_k=groups.shape[2],
        num_groups=num_groups,
        window=window,
        sinks=sinks,
        match=match,
        scale=scale,
        temperature=temperature,
        temperature_scope=temperature_scope,
        softcap=softcap,
        sink_logits=sink_logits,
    )
    out, lse = dense(query, key, value, groups, problem, padding_mask, sequence_ids)
    return (out, lse) if return_lse else out


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Tensor,
    problem: Problem,
    padding_mask: Tensor | None,
    sequence_ids: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The contract for a checked problem."""
    batch, q_heads, tokens, _ = query.shape
    documents = token_documents(batch, tokens, padding_mask, sequence_ids, query.device)
    mask, distant = visible(token_positions(documents), documents, groups, problem)
    mask, distant = mask[:, None], distant[:, None]  # [B, 1, T, T]

    repeat = q_heads // key.shape[1]
    broken = ~(key.detach().isfinite().all(-1) & value.detach().isfinite().all(-1))  # [B, Hkv, T]
    seen = broken.new_zeros(query.shape[:3])
    if bool(broken.any()):
        seen = (mask & broken[:, :, None]).any(-1).repeat_interleave(repeat, 1)
        query, key, value = blank(query, seen), blank(key, broken), blank(value, broken)
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    logits = query @ key.transpose(-1, -2) * problem.scale
    if problem.temperature is not None:
        cooled = logits / problem.temperature.reshape(-1, 1, 1).to(logits.dtype)
        logits = torch.where(distant, cooled, logits) if problem.temperature_scope == "distant" else cooled
    if problem.softcap is not None:
        logits = problem.softcap * torch.tanh(logits / problem.softcap)
    logits = logits.masked_fill(~mask, float("-inf"))
    if problem.sink_logits is not None:
        extra = problem.sink_logits.to(logits.dtype).reshape(1, -1, 1, 1).expand(batch, -1, tokens, 1)
        logits = torch.cat([logits, extra], dim=-1)
    real = (documents >= 0)[:, None, :, None]
    lse = torch.logsumexp(logits.masked_fill(~real, 0.0), dim=-1)
    weights = torch.exp(logits - lse[..., None])[..., :tokens].masked_fill(~real, 0.0)
    lse = lse.masked_fill(~real[..., 0], float("-inf"))
    out, lse = (weights @ value).masked_fill(seen[..., None], NAN), lse.masked_fill(seen, NAN)
    return out, lse.to(torch.float64 if lse.dtype == torch.float64 else torch.float32)
