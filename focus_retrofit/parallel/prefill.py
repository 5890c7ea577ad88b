"""A prompt over several ranks in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from .session import SequenceParallel, sequence_parallel
from .slices import even_starts
from .traffic import Traffic


@dataclass(frozen=True)
class Prefilled:
    """What a prefill leaves on each rank."""

    last: Tensor  # [B, V] logits of the last token, on every rank
    logits: Tensor | None  # [B, n, V] of this rank's own tokens, if they were asked for
    start: int  # position of this rank's first token
    session: SequenceParallel  # for gather_cache

    @property
    def traffic(self) -> Traffic:
        """Bytes that this rank sent to attend, by kind."""
        return self.session.traffic


@torch.no_grad()
def prefill_in_parallel(
    model: PreTrainedModel,
    ids: Tensor,
    process_group: Any = None,
    *,
    all_logits: bool = False,
    keep_cache: bool = True,
) -> Prefilled:
    """ids [B, T], the same on every rank: each runs the model on its slice of them. Every rank must call it."""
    with sequence_parallel(model, process_group, keep_cache=keep_cache) as session:
        link = session.link
        starts = even_starts(ids.shape[1], link.ranks)
        mine = ids[:, starts[link.rank] : starts[link.rank + 1]].to(model.device)
        given = {} if all_logits else {"logits_to_keep": 1}
        logits: Tensor = model(input_ids=mine, **given).logits
    last = logits[:, -1].clone(memory_format=torch.contiguous_format)  # about to be overwritten by the final rank's
    final = link.ranks - 1
    dist.broadcast(last, final if process_group is None else dist.get_global_rank(process_group, final), process_group)
    return Prefilled(last, logits if all_logits else None, starts[link.rank], session)
