"""From a padded, packed batch to plain sequences: all that follows sees one sequence of real tokens at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import FocusError


@dataclass(frozen=True)
class Sequence:
    """One document: where its tokens stand in the batch. `index` is set only where they are not contiguous."""

    row: int
    start: int
    length: int
    index: Tensor | None = None

    def take(self, tensor: Tensor, dim: int) -> Tensor:
        """This sequence's tokens of a [B, ...] tensor; a view wherever they are contiguous. `dim` counts without B."""
        if self.index is None:
            return tensor[self.row].narrow(dim, self.start, self.length)
        return tensor[self.row].index_select(dim, self.index)

    def put(self, tensor: Tensor, dim: int, part: Tensor) -> None:
        """Write `part` to where `take` read from."""
        if self.index is None:
            tensor[self.row].narrow(dim, self.start, self.length).copy_(part)
        else:
            tensor[self.row].index_copy_(dim, self.index, part.to(tensor.dtype))


def token_documents(
    batch: int, tokens: int, padding_mask: Tensor | None, sequence_ids: Tensor | None, device: torch.device
) -> Tensor:
    """[B, T] document number of each token (dense, any order), -1 for padding."""
    for name, tensor in (("padding_mask", padding_mask), ("sequence_ids", sequence_ids)):
        if tensor is not None and tensor.shape != (batch, tokens):
            raise FocusError(f"{name} must be [{batch}, {tokens}], got shape {list(tensor.shape)}")
    documents = torch.zeros(batch, tokens, dtype=torch.long, device=device)
    if sequence_ids is not None:
        if sequence_ids.dtype.is_floating_point:
            raise FocusError(f"sequence_ids must be integers, got {sequence_ids.dtype}")
        documents = torch.unique(sequence_ids.to(device), return_inverse=True)[1].reshape(batch, tokens)
    if padding_mask is not None:
        documents = documents.masked_fill(~padding_mask.to(device).bool(), -1)
    return documents


def token_positions(documents: Tensor) -> Tensor:
    """[B, T] place of each real token within its document; -1 for padding."""
    order = documents.argsort(dim=1, stable=True)
    ordered = documents.gather(1, order)
    place = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = torch.where(starts, place, 0).cummax(dim=1).values
    positions = torch.empty_like(documents).scatter_(1, order, place - first)
    return positions.masked_fill(documents < 0, -1)


def sequences(
    batch: int, tokens: int, padding_mask: Tensor | None, sequence_ids: Tensor | None, device: torch.device
) -> list[Sequence]:
    """The documents of a batch, in row order; padding belongs to none."""
    if tokens == 0:
        return []
    if padding_mask is None and sequence_ids is None:
        return [Sequence(row, 0, tokens) for row in range(batch)]
    documents = token_documents(batch, tokens, padding_mask, sequence_ids, device)
    found = []
    for row in range(batch):
        ids, counts = torch.unique(documents[row], return_counts=True)
        order = documents[row].argsort(stable=True)
        end = 0
        for document, count in zip(ids.tolist(), counts.tolist(), strict=True):
            index, end = order[end : end + count], end + count
            if document < 0:
                continue
            start, last = int(index[0]), int(index[-1])
            contiguous = last - start + 1 == count
            found.append(Sequence(row, start, count, None if contiguous else index))
    return found
