"""The training gate: dense attention in which distant pairs are weighed by how much their soft groups overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from .router import Routing

if TYPE_CHECKING:
    from .controller import Focus

FAINTEST = 1e-12  # smallest overlap the log gate tells from nothing: its weight is 28 logits down


def soft_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    routed: Routing,
    focus: Focus,
    *,
    scale: float,
    temperature: float | Tensor | None,
    softcap: float | None,
    sink_logits: Tensor | None,
    dropout: float,
) -> Tensor:
    """query [B, Hq, T, D], key/value [B, Hkv, T, *] -> [B, Hq, T, Dv]; O(T^2).

    Queries at positions below `focus.dense_below` see everything before them, ungated.
    """
    config, layout, per_token = focus.config, routed.layout, routed.per_token
    batch, heads, tokens, size = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, tokens, size)  # [B, Hkv, G, T, D]
    high = torch.promote_types(query.dtype, torch.float32)
    scores = (grouped.to(high) @ key[:, :, None].to(high).mT) * scale

    positions = layout.positions()  # [B, T], -1 at padding
    distance = positions[:, :, None] - positions[:, None, :]
    visible = (distance >= 0) & layout.same_document()
    focused = (positions >= focus.dense_below)[:, :, None]
    distant = ((distance > config.window) & focused)[:, None, None]
    gated = distant & (positions >= config.sinks)[:, None, None, None, :]
    if temperature is not None:
        temperature = torch.as_tensor(temperature, dtype=high, device=query.device)
        if temperature.dim():  # of each head
            temperature = temperature.reshape(key.shape[1], -1, 1, 1)
        where = distant if config.temperature_scope == "distant" else focused[:, None, None]
        scores = torch.where(where, scores / temperature, scores)
    if per_token is not None:
        scores = torch.where(focused[:, None, None], scores / per_token[:, None, None, :, None].to(scores), scores)

    assignments = routed.logits.softmax(-1).to(query.device)
    overlap = (assignments @ assignments.mT)[:, None, None].to(high)  # [B, 1, 1, T, T]
    if config.gate == "multiplicative":
        scores = torch.where(gated, scores * torch.sigmoid(config.gate_strength * overlap), scores)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if config.gate == "log":
        scores = torch.where(gated, scores + overlap.clamp_min(FAINTEST).log(), scores)

    scores = scores.masked_fill(~visible[:, None, None], torch.finfo(high).min)
    if sink_logits is not None:
        extra = sink_logits.to(high).reshape(1, key.shape[1], -1, 1, 1).expand(batch, -1, -1, tokens, 1)
        weights = torch.cat([scores, extra], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    weights = F.dropout(weights, dropout).to(value.dtype)
    return (weights @ value[:, :, None]).reshape(batch, heads, tokens, -1)
