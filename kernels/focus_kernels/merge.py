"""Partial softmaxes become one: the merge by logsumexp, and every library's way to say 'this row saw nothing'."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

SERIAL = 16384  # elements that torch handles on one thread


def normalise_lse(lse: Tensor) -> Tensor:
    """An empty row is +inf in FlashAttention-2 and -inf in 3; -inf is the one that merges."""
    return lse.masked_fill(lse == float("inf"), float("-inf"))


def merge_(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Fold (more, more_lse) into (out, lse) in place, using `more` up: out [..., H, M, D], lse [..., H, M].

    A part whose weight is 0 leaves every bit as it was; two empty parts stay empty. Bits do not depend on how many
    rows are merged along: exp and log run in pieces too small to be split over threads, so that (M being a multiple
    of the vector length) no element falls into a loop's scalar remainder; the rest is single IEEE operations.
    """
    if lse.dim() == 3:
        for parts in zip(out, lse, more, more_lse, strict=True):
            merge_(*parts)
        return
    weight, keep = torch.empty_like(more_lse), torch.empty_like(more_lse)
    rows = min(lse.shape[1], SERIAL)
    heads = max(SERIAL // max(rows, 1), 1)
    for head, row in product(range(0, lse.shape[0], heads), range(0, lse.shape[1], max(rows, 1))):
        some = (slice(head, head + heads), slice(row, row + rows))
        old, new = lse[some], more_lse[some]
        lead = (new - old).nan_to_num_(float("-inf"))
        torch.sigmoid(lead, out=weight[some])
        torch.sigmoid(lead.neg_(), out=keep[some])
        torch.logaddexp(old, new, out=old)
    out.mul_(keep[..., None])
    out.add_(more.to(out.dtype).mul_(weight[..., None]))


def add_sink_logits_(out: Tensor, lse: Tensor, logits: Tensor) -> None:
    """A learned logit per head without a value joins the softmax: out [..., H, M, D], lse [..., H, M], logits [H]."""
    logits = logits.detach().to(lse.dtype)[:, None]
    out.mul_(torch.sigmoid(lse - logits)[..., None].to(out.dtype))
    torch.logaddexp(lse, logits.expand_as(lse), out=lse)
