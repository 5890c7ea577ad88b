"""Partial softmaxes become one: the merge by logsumexp, and every library's way to say 'this row saw nothing'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

SERIAL = 16384  # elements that torch handles on one thread
VECTOR = 32  # elements of a vectorised loop's step, at most


def normalise_lse(lse: Tensor) -> Tensor:
    """An empty row is +inf in FlashAttention-2 and -inf in 3; -inf is the one that merges."""
    return lse.masked_fill(lse == float("inf"), float("-inf"))


def merge_(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Fold (more, more_lse) into (out, lse) in place, using `more` up: out [..., H, M, D], lse [..., H, M].

    A part whose weight is 0 leaves every bit as it was; two empty parts stay empty. Bits do not depend on how many
    rows are merged along, nor on how they lie in memory: exp and log run in pieces too small to be split over threads,
    of rows side by side and of whole vectors, so that no element falls into a scalar loop; the rest is single IEEE
    operations.
    """
    rows, beyond = lse.shape[-1], -lse.shape[-1] % VECTOR
    old_lse, new_lse = (F.pad(x, (0, beyond)) if beyond else x for x in (lse, more_lse))
    new_lse, old_lse = new_lse.contiguous(), old_lse if old_lse.stride(-1) == 1 else old_lse.contiguous()
    weight, keep = torch.empty_like(new_lse), torch.empty_like(new_lse)
    for some in _pieces(old_lse.shape):
        old, new = old_lse[some], new_lse[some]
        lead = (new - old).nan_to_num_(float("-inf"))
        torch.sigmoid(lead, out=weight[some])
        torch.sigmoid(lead.neg_(), out=keep[some])
        torch.logaddexp(old, new, out=old)
    if old_lse is not lse:
        lse.copy_(old_lse[..., :rows])
    out.mul_(keep[..., :rows, None])
    out.add_(more.to(out.dtype).mul_(weight[..., :rows, None]))


def _pieces(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """[..., H, M] in pieces of at most SERIAL elements, rows of M whole where they fit."""
    left, steps = SERIAL, []
    for size in reversed(shape):
        steps.append(max(min(size, left), 1))
        left //= steps[-1]
    ranges = [range(0, size, step) for size, step in zip(shape, reversed(steps), strict=True)]
    for starts in product(*ranges):
        yield tuple(slice(start, start + step) for start, step in zip(starts, reversed(steps), strict=True))


def add_sink_logits_(out: Tensor, lse: Tensor, logits: Tensor) -> None:
    """A learned logit per head without a value joins the softmax: out [..., H, M, D], lse [..., H, M], logits [H]."""
    logits = logits.detach().to(lse.dtype)[:, None]
    out.mul_(torch.sigmoid(lse - logits)[..., None].to(out.dtype))
    torch.logaddexp(lse, logits.expand_as(lse), out=lse)
