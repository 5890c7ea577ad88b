"""What full attention makes of the pairs beyond the window, and how much of that the groups keep.

Two ways to weigh a pair: by its attention weight, or by how much the loss would feel its loss. Both are found in blocks
of queries, from what a layer was given, so that memory is linear in the length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..attention import Seen

ROWS = 512  # queries at once
Weighed = Iterator[tuple[slice, Tensor]]  # queries, and the weights of their pairs [B, R, T]


def attention_weights(seen: Seen, window: int, sinks: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """(queries, full attention's weights [B, Hkv, G, R, T], which pairs groups decide on [B, R, T])."""
    query, key, layout, options = seen.query, seen.key, seen.routed.layout, seen.options
    batch, _, tokens, size = query.shape
    positions, high = layout.positions(), torch.promote_types(query.dtype, torch.float32)
    documents = layout.documents
    grouped = query.reshape(batch, key.shape[1], -1, tokens, size)  # [B, Hkv, G, T, D]
    for start in range(0, tokens, ROWS):
        some = slice(start, min(start + ROWS, tokens))
        scores = (grouped[:, :, :, some].to(high) @ key[:, :, None].to(high).mT) * options["scale"]
        if options["softcap"] is not None:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        distance = positions[:, some, None] - positions[:, None, :]
        hidden = distance < 0
        if documents is not None:
            hidden |= (documents[:, some, None] != documents[:, None, :]) | (documents < 0)[:, None, :]
        scores = scores.masked_fill(hidden[:, None, None], torch.finfo(high).min)
        if options["sink_logits"] is not None:
            extra = options["sink_logits"].to(high).reshape(1, key.shape[1], -1, 1, 1)
            scores = torch.cat([scores, extra.expand(*scores.shape[:-1], 1)], -1)
        decided = (distance > window) & ~hidden & (positions >= sinks)[:, None, :]
        yield some, scores.softmax(-1)[..., :tokens], decided


@torch.no_grad()
def masses(seen: Seen, window: int, sinks: int) -> Weighed:
    """Pairs by their attention weight, summed over heads; 0 where groups have no say."""
    for some, weights, decided in attention_weights(seen, window, sinks):
        yield some, weights.sum((1, 2)) * decided


@torch.no_grad()
def sensitivities(seen: Seen, out: Tensor, grad: Tensor, window: int, sinks: int) -> Weighed:
    """Pairs by the square of d(loss)/d(logit), summed over heads: the diagonal of the loss's curvature in what pruning
    removes. out and grad [B, T, Hq, Dv] are the layer's output and its gradient."""
    batch, tokens, heads, size = out.shape
    kv = seen.key.shape[1]
    value = seen.value[:, :, None].float()  # [B, Hkv, 1, T, Dv]
    slope = grad.float().transpose(1, 2).reshape(batch, kv, heads // kv, tokens, size)
    delta = (grad.float() * out.float()).sum(-1).transpose(1, 2).reshape(batch, kv, heads // kv, tokens, 1)
    for some, weights, decided in attention_weights(seen, window, sinks):
        felt = weights * (slope[:, :, :, some] @ value.mT - delta[:, :, :, some])
        yield some, felt.square_().sum((1, 2)) * decided


def lost_mass(soft: Tensor, parts: Weighed) -> Tensor:
    """1 - the share of a row's weights that stays within groups, mean over rows, for soft assignments [B, T, K].

    kept = sum_ij w_ij g_i.g_j / sum_ij w_ij is bilinear: its gradient needs (W + W') g, not the pairs themselves.
    """
    now = soft.detach()
    slope, kept, total = torch.zeros_like(now), now.new_zeros(now.shape[0]), now.new_zeros(now.shape[0])
    for some, weight in parts:
        weight = weight.to(now)
        read = weight @ now  # [B, R, K]
        kept, total = kept + (read * now[:, some]).sum((1, 2)), total + weight.sum((1, 2))
        slope[:, some] += read
        slope += weight.mT @ now[:, some]
    total = total.clamp_min(1e-20)
    through = (soft * slope).sum((1, 2)) / total
    return (1 - kept / total - (through - through.detach())).mean()
