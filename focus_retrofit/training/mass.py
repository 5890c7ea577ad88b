"""What full attention would look at beyond the window, and how much of it the groups keep: a loss without backward
through the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..attention import Seen

ROWS = 512  # queries weighed at once: memory is linear in the length


@torch.no_grad()
def weights(seen: Seen, window: int, sinks: int, power: float, rows: int = ROWS) -> Iterator[tuple[slice, Tensor]]:
    """(queries, [B, R, T]): attention weights of full attention to the power, summed over heads, for the pairs that
    groups decide on (beyond the window, not of sinks); 0 elsewhere."""
    query, key, layout, options = seen.query, seen.key, seen.routed.layout, seen.options
    batch, heads, tokens, size = query.shape
    positions, high = layout.positions(), torch.promote_types(query.dtype, torch.float32)
    documents = layout.documents
    grouped = query.reshape(batch, key.shape[1], -1, tokens, size)  # [B, Hkv, G, T, D]
    for start in range(0, tokens, rows):
        some = slice(start, min(start + rows, tokens))
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
        found = scores.softmax(-1)[..., :tokens].pow_(power).sum((1, 2))  # [B, R, T]
        decided = (distance > window) & ~hidden & (positions >= sinks)[:, None, :]
        yield some, found * decided


def lost_mass(soft: Tensor, parts: Iterator[tuple[slice, Tensor]]) -> Tensor:
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
