"""What full attention makes of the pairs beyond the window, and how much of that the groups keep.

Three ways to weigh a pair: by its attention weight, by how much the loss would feel its loss, or by what the loss gains
by it where most others are missing. All are found in blocks of queries, from what a layer was given, so that memory is
linear in the length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from ..attention import Seen

ROWS = 128  # queries at once
LOW = -1e30  # a logit that is not there
Weighed = Iterator[tuple[slice, Tensor]]  # queries, and the weights of their pairs [B, R, T]


def attention_logits(seen: Seen, window: int, sinks: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """(queries, full attention's logits [B, Hkv, G, R, S] and one more key where the model has a sink logit, which
    pairs groups decide on [B, R, S]): of the S keys up to the last query. What is not to be seen at all is very low."""
    query, key, layout, options = seen.query, seen.key, seen.routed.layout, seen.options
    batch, _, tokens, size = query.shape
    positions, high = layout.positions(), torch.promote_types(query.dtype, torch.float32)
    documents = layout.documents
    grouped = query.reshape(batch, key.shape[1], -1, tokens, size)  # [B, Hkv, G, T, D]
    for start in range(0, tokens, ROWS):
        some = slice(start, min(start + ROWS, tokens))
        past = slice(0, some.stop)
        scores = (grouped[:, :, :, some].to(high) @ key[:, :, None, past].to(high).mT) * options["scale"]
        if options["softcap"] is not None:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        distance = positions[:, some, None] - positions[:, None, past]
        hidden = distance < 0
        if documents is not None:
            hidden |= (documents[:, some, None] != documents[:, None, past]) | (documents < 0)[:, None, past]
        scores = scores.masked_fill(hidden[:, None, None], LOW)
        if options["sink_logits"] is not None:
            extra = options["sink_logits"].to(high).reshape(1, key.shape[1], -1, 1, 1)
            scores = torch.cat([scores, extra.expand(*scores.shape[:-1], 1)], -1)
        yield some, scores, (distance > window) & ~hidden & (positions >= sinks)[:, None, past]


@torch.no_grad()
def masses(seen: Seen, window: int, sinks: int) -> Weighed:
    """Pairs by their attention weight, summed over heads; 0 where groups have no say."""
    for some, logits, decided in attention_logits(seen, window, sinks):
        yield some, _over_heads(logits.softmax(-1)[..., : some.stop], decided, seen)


@torch.no_grad()
def sensitivities(seen: Seen, out: Tensor, grad: Tensor, window: int, sinks: int) -> Weighed:
    """Pairs by the square of d(loss)/d(logit), summed over heads: the diagonal of the loss's curvature in what pruning
    removes. out and grad [B, T, Hq, Dv] are the layer's output, of full attention, and its gradient."""
    pull = _Pull(seen, out, grad)
    for some, logits, decided in attention_logits(seen, window, sinks):
        felt = logits.softmax(-1)[..., : some.stop] * pull(some)
        yield some, _over_heads(felt.square_(), decided, seen)


@torch.no_grad()
def gains(seen: Seen, out: Tensor, grad: Tensor, window: int, sinks: int, match: str) -> Weighed:
    """Pairs by how much the loss falls, to first order in the layer's output, where one is seen: summed over heads, of
    either sign. out and grad [B, T, Hq, Dv] are of attention within the groups in `seen`: a pair within them has the
    weight that it has there, any other the one that it would have beside those."""
    pull, groups = _Pull(seen, out, grad), seen.routed.groups
    keys = groups if match == "share" else groups[..., :1]  # [B, T, k]
    for some, logits, decided in attention_logits(seen, window, sinks):
        matching = (groups[:, some, None, :, None] == keys[:, None, : some.stop, None, :]).any(-1).any(-1)  # [B, R, S]
        apart = (decided & ~matching)[:, None, None]
        full = logits.softmax(-1)
        weights = full[..., : some.stop]
        beside = weights * apart
        served = (weights - beside).sum(-1, keepdim=True) + full[..., some.stop :].sum(-1, keepdim=True)
        gained = (weights / (served + beside).clamp_min(1e-30)).mul_(pull(some))
        yield some, -_over_heads(gained, decided, seen)


def _over_heads(weights: Tensor, decided: Tensor, seen: Seen) -> Tensor:
    """[B, Hkv, G, R, S] -> [B, R, T], the sum over all heads, wherever they are; 0 where groups do not decide."""
    found = weights.sum((1, 2)) * decided
    if seen.spread is not None:
        torch.distributed.all_reduce(found, group=seen.spread)
    return F.pad(found, (0, seen.key.shape[2] - found.shape[2]))


class _Pull:
    """What the loss feels of more weight on a pair: dO.(v_j - o_i), for some rows [B, Hkv, G, R, S]."""

    def __init__(self, seen: Seen, out: Tensor, grad: Tensor):
        batch, tokens, heads, size = out.shape
        shape = (batch, seen.key.shape[1], heads // seen.key.shape[1], tokens)
        self.value = seen.value[:, :, None].float()  # [B, Hkv, 1, T, Dv]
        self.slope = grad.float().transpose(1, 2).reshape(*shape, size)
        self.delta = (grad.float() * out.float()).sum(-1).transpose(1, 2).reshape(*shape, 1)

    def __call__(self, some: slice) -> Tensor:
        return self.slope[:, :, :, some] @ self.value[..., : some.stop, :].mT - self.delta[:, :, :, some]


def lost_mass(soft: Tensor, parts: Weighed) -> Tensor:
    """1 - the share of a row's weights that stays within groups, mean over rows, for soft assignments [B, T, K]; of all
    of them, whatever their sign.

    kept = sum_ij w_ij g_i.g_j / sum_ij |w_ij| is bilinear: its gradient needs (W + W') g, not the pairs themselves.
    """
    now = soft.detach()
    slope, kept, total = torch.zeros_like(now), now.new_zeros(now.shape[0]), now.new_zeros(now.shape[0])
    for some, weight in parts:
        weight = weight.to(now)
        read = weight @ now  # [B, R, K]
        kept, total = kept + (read * now[:, some]).sum((1, 2)), total + weight.abs().sum((1, 2))
        slope[:, some] += read
        slope += weight.mT @ now[:, some]
    total = total.clamp_min(1e-20)
    through = (soft * slope).sum((1, 2)) / total
    return (1 - kept / total - (through - through.detach())).mean()
