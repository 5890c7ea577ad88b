"""Partial softmaxes become one: the merge by logsumexp, and every library's way to say 'this row saw nothing'."""

from __future__ import annotations

import torch
from torch import Tensor


def normalise_lse(lse: Tensor) -> Tensor:
    """An empty row is +inf in FlashAttention-2 and -inf in 3; -inf is the one that merges."""
    return lse.masked_fill(lse == float("inf"), float("-inf"))


def merge_(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Fold (more, more_lse) into (out, lse) in place: out [..., M, D], lse [..., M].

    A part whose weight is 0 leaves every bit as it was; two empty parts stay empty.
    """
    weight = torch.sigmoid_((more_lse - lse).nan_to_num_(float("-inf")))
    out.lerp_(more.to(out.dtype), weight[..., None].to(out.dtype))
    torch.logaddexp(lse, more_lse, out=lse)


def add_sink_logits_(out: Tensor, lse: Tensor, logits: Tensor) -> None:
    """A learned logit per head without a value joins the softmax: out [..., H, M, D], lse [..., H, M], logits [H]."""
    logits = logits.detach().to(lse.dtype)[:, None]
    out.mul_(torch.sigmoid(lse - logits)[..., None].to(out.dtype))
    torch.logaddexp(lse, logits.expand_as(lse), out=lse)
