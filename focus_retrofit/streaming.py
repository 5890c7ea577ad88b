"""Reading a prompt of any length: chunk after chunk through all layers, so that memory is the cache's and a chunk's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import DynamicCache, PreTrainedModel

from focus_kernels import FocusError

from .cache import FocusCache
from .discover import device_of

CHUNK = 4096  # with K = 8 a group has hundreds of queries in a chunk: larger ones were no faster


@dataclass(frozen=True)
class Prefilled:
    """A prompt that was read: the cache to go on with, and the logits of its last tokens [B, keep, vocabulary]."""

    cache: Any
    logits: Tensor
    tokens: int
    seconds: float


@torch.inference_mode()
def prefill(
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    cache: Any = None,
    chunk: int = CHUNK,
    keep: int = 1,
    progress: bool = True,
) -> Prefilled:
    """Read input_ids [B, T] in chunks; what comes out does not depend on their size.

    `cache`: where the keys go (`model.focus.new_cache(dtype=..., spill=...)`), after what it holds already.
    attention_mask [B, T] is of these tokens, or of all with those the cache holds. To generate after a long prompt,
    read all but its last token, then `model.generate(input_ids, past_key_values=prefilled.cache)`.
    """
    batch, tokens = _check(input_ids, chunk, keep)
    if cache is None:
        focus: Any = getattr(model, "focus", None)
        served = focus is not None and focus.enabled and focus.mode == "hard"
        cache = FocusCache(model) if served else DynamicCache(config=model.config)
    before = cache.get_seq_length()
    options = _masked(attention_mask, before, batch, tokens)
    kept: list[Tensor] = []
    clock = Estimate(before, before + tokens)
    bar = tqdm(total=tokens, desc="reading", unit="token", unit_scale=True, disable=None if progress else True)
    with bar:
        for end, logits in read_chunks(model, input_ids, cache, chunk, keep, options):
            if end > tokens - keep:
                kept.append(logits)
            clock.note(before + end)
            if end < tokens:
                bar.set_postfix_str(clock.text())
            bar.update(end - bar.n)
    return Prefilled(cache, torch.cat(kept, 1), tokens, clock.seconds[-1])


def read_chunks(
    model: PreTrainedModel,
    input_ids: Tensor,
    cache: Any,
    chunk: int,
    keep: int = 1,
    options: Sequence[tuple[str, Tensor]] = (),
) -> Iterator[tuple[int, Tensor]]:
    """Chunk after chunk of input_ids [B, T] into the cache: where each ends, and its last logits, of which those of the
    last `keep` tokens are wanted. `options`: attention_mask and position_ids, see `_masked`."""
    tokens, before, device = input_ids.shape[1], cache.get_seq_length(), device_of(model)
    if isinstance(cache, FocusCache):
        cache.expect(before + tokens)
    for start in range(0, tokens, chunk):
        end = min(start + chunk, tokens)
        out = model(
            input_ids=input_ids[:, start:end].to(device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=max(end - max(start, tokens - keep), 1),
            **{name: x[:, : before + end] if name == "attention_mask" else x[:, start:end] for name, x in options},
        )
        yield end, out.logits


def _check(input_ids: Tensor, chunk: int, keep: int) -> tuple[int, int]:
    if input_ids.dim() != 2 or not input_ids.numel():
        raise FocusError(f"input_ids has shape {list(input_ids.shape)}; give tokens as [batch, tokens], at least one")
    if chunk < 1:
        raise FocusError(f"chunk is {chunk}; it must be at least 1 token")
    if not 1 <= keep <= input_ids.shape[1]:
        raise FocusError(f"keep is {keep}; keep the logits of 1 to {input_ids.shape[1]} last tokens")
    return input_ids.shape[0], input_ids.shape[1]


def _masked(mask: Tensor | None, before: int, batch: int, tokens: int) -> list[tuple[str, Tensor]]:
    """The mask of all tokens so far, and the position of each new one, counting real tokens only."""
    if mask is None:
        return []
    if mask.shape == (batch, tokens) and before:
        mask = torch.cat([mask.new_ones(batch, before), mask], 1)
    if mask.shape != (batch, before + tokens):
        raise FocusError(
            f"attention_mask has shape {list(mask.shape)}; give [{batch}, {tokens}], for these tokens"
            + (f", or [{batch}, {before + tokens}], with those in the cache" if before else "")
        )
    positions = (mask.long().cumsum(1) - 1).clamp_min(0)
    return [("attention_mask", mask), ("position_ids", positions[:, before:])]


class Estimate:
    """How long the rest will take: a chunk costs a constant per token, and more the more there is before it."""

    def __init__(self, first: int, last: int):
        self.ends, self.seconds, self.last = [first], [0.0], last
        self.start = time.perf_counter()

    def note(self, end: int) -> None:
        """The tokens up to `end` are done."""
        self.ends.append(end)
        self.seconds.append(time.perf_counter() - self.start)

    def left(self) -> float | None:
        """Seconds to go; None before there is anything to tell from."""
        return remaining(self.ends, self.seconds, self.last)

    def text(self) -> str:
        left = self.left()
        return "" if left is None else f"about {_duration(left)} left"


def remaining(ends: Sequence[int], seconds: Sequence[float], last: int) -> float | None:
    """Seconds from ends[-1] to `last`, by a least-squares fit of seconds = a n + b n^2 from ends[0] on."""
    n = torch.tensor([end - ends[0] for end in ends[1:]], dtype=torch.float64)
    if not n.numel():
        return None
    # counted from ends[0], tokens before it cost each later one the same, so they are part of a
    spent = torch.tensor(seconds[1:], dtype=torch.float64)
    a, b = spent[-1] / n[-1], n.new_zeros(())
    if n.numel() > 1:
        columns = torch.stack([n, n * n], 1)
        found = torch.linalg.lstsq(columns, spent[:, None]).solution[:, 0]
        if found.min() >= 0:
            a, b = found
        elif found[0] < 0:
            a, b = n.new_zeros(()), (spent * n * n).sum() / (n**4).sum()
    end, total = float(n[-1]), float(last - ends[0])
    return float(a * (total - end) + b * (total**2 - end**2))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
