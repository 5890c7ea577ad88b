"""Which tokens of a batch are real and which belong together: what transformers' mask function tells us, kept small.

transformers asks the mask function of the attention implementation once per forward pass. For full attention ours
answers with None (nothing special) or with the document number of every key [B, T], -1 at padding: enough to rebuild
any mask, and linear in the length. Sliding-window masks are the base implementation's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, and_masks, causal_mask_function

from focus_kernels import FocusError
from focus_kernels.layout import token_positions


@dataclass
class Layout:
    """Where documents and padding are, in a batch of T tokens."""

    batch: int
    tokens: int
    documents: Tensor | None  # [B, T], -1 at padding; None: each row is one document
    device: torch.device

    @cached_property
    def real(self) -> Tensor | None:
        """[B, T] true at real tokens; None when all are."""
        if self.documents is None or bool((self.documents >= 0).all()):
            return None
        return self.documents >= 0

    @cached_property
    def sequence_ids(self) -> Tensor | None:
        """[B, T] document numbers; None when every row holds one document."""
        if self.documents is None:
            return None
        first = self.documents.amax(1, keepdim=True)
        return None if bool(((self.documents == first) | (self.documents < 0)).all()) else self.documents

    def positions(self) -> Tensor:
        """[B, T] place of each real token within its document, -1 at padding."""
        if self.documents is None:
            return torch.arange(self.tokens, device=self.device).expand(self.batch, -1)
        return token_positions(self.documents)

    def same_document(self) -> Tensor:
        """[B, T, T]: both are real and of one document."""
        if self.documents is None:
            return torch.ones((), dtype=torch.bool, device=self.device)
        return (self.documents[:, :, None] == self.documents[:, None, :]) & (self.documents >= 0)[:, None, :]


def make_mask_function(base: str) -> Callable[..., Tensor | None]:
    """The mask function to register beside the attention function over a base implementation."""

    def focus_mask(**kwargs: Any) -> Any:
        if kwargs.get("local_size") is not None or kwargs.get("allow_is_bidirectional_skip"):
            return ALL_MASK_ATTENTION_FUNCTIONS[base](**kwargs)
        return documents_of(**kwargs)

    return focus_mask


def documents_of(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **unused: Any,
) -> Tensor | None:
    """The document number of each key [B, kv_length], -1 at padding; None when there is neither padding nor packing."""
    if use_vmap:
        raise FocusError(
            "this model adds a mask of its own to causal attention (image or prefix tokens); Focus routes causal text "
            "only: run it inside `with model.focus.disabled():`"
        )
    documents = None
    if mask_function is not causal_mask_function and q_length == kv_length > 1:
        place = torch.arange(kv_length, device=device)
        row = torch.arange(batch_size, device=device)[:, None]
        joined = mask_function(row, 0, place[None, 1:], place[None, :-1])  # does a token see the one before it?
        if not bool(joined.all()):
            starts = torch.nn.functional.pad(~joined, (1, 0))
            documents = starts.expand(batch_size, kv_length).long().cumsum(1)
    if attention_mask is not None:
        real = attention_mask[:, kv_offset : kv_offset + kv_length].to(device).bool()
        real = torch.nn.functional.pad(real, (0, kv_length - real.shape[1]))
        if not bool(real.all()):
            documents = torch.zeros_like(real, dtype=torch.long) if documents is None else documents
            documents = documents.masked_fill(~real, -1)
    return documents


def base_mask(base: str, query: Tensor, kv_length: int, documents: Tensor | None, config: Any) -> Any:
    """The mask that the base implementation would have been given: for layers that stay dense."""
    if base not in ALL_MASK_ATTENTION_FUNCTIONS:
        return None
    if base == "sdpa" and documents is None and kv_length == query.shape[2]:
        return None  # what it would say, asked in every layer
    layout, function = Layout(query.shape[0], kv_length, documents, query.device), causal_mask_function
    packed = layout.sequence_ids
    if packed is not None:

        def together(row: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return packed[row, q] == packed[row, k]

        function = and_masks(causal_mask_function, together)
    return ALL_MASK_ATTENTION_FUNCTIONS[base](
        batch_size=query.shape[0],
        q_length=query.shape[2],
        kv_length=kv_length,
        q_offset=kv_length - query.shape[2],
        kv_offset=0,
        mask_function=function,
        attention_mask=layout.real,
        allow_is_causal_skip=packed is None,
        dtype=query.dtype,
        config=config,
        use_vmap=False,
        device=query.device,
    )
