"""What every rival shares: a rule for which distant keys a query sees, and the budget it keeps to.

All rivals see the window and the sinks as Focus does, so that what differs is how distant keys are chosen. A rule is
given one document at a time, real tokens only: padding, packing and neighbours in a batch cannot change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from focus_kernels import FocusError

if TYPE_CHECKING:
    from ..attention import Seen


@dataclass(frozen=True)
class Text:
    """One document in one layer."""

    layer: int
    layers: int  # how many there are
    query: Tensor  # [Hq, n, D]
    key: Tensor  # [Hkv, n, D]
    value: Tensor  # [Hkv, n, Dv]
    scale: float

    @property
    def tokens(self) -> int:
        return self.query.shape[1]

    @property
    def repeat(self) -> int:
        """Query heads to a head of keys."""
        return self.query.shape[0] // self.key.shape[0]

    @property
    def tiled(self) -> bool:
        """Whether aten's FlashAttention for CPU takes these tensors."""
        return self.query.device.type == "cpu" and self.query.shape[2] == self.value.shape[2]

    def distance(self) -> Tensor:
        """[n, n]: how far a key lies before a query."""
        place = torch.arange(self.tokens, device=self.query.device)
        return place[:, None] - place

    def logits(self, queries: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """[Hq, n, N]: scaled products, of other queries and keys where given."""
        query, key = self.query if queries is None else queries, self.key if keys is None else keys
        return query.float() @ key.float().repeat_interleave(self.repeat, 0).transpose(1, 2) * self.scale


@dataclass
class Rival:
    """Override `chosen`, or `attend` where there is a faster way than a mask."""

    share: float  # of its distant keys that a query may see: the k / K of Focus
    window: int
    sinks: int
    name: ClassVar[str]  # on the command line
    title: ClassVar[str]  # in tables
    what: ClassVar[str]
    choosing: ClassVar[float] = 0.0  # what choosing costs beside the pairs, as a share of full attention's products
    learns: ClassVar[bool] = False  # from training text, in `prepare`
    engine: ClassVar[str] = "dense mask"  # a mask saves no time: such a rival is judged by its pairs alone

    def prepare(self, model: Any, windows: list[Tensor]) -> None:
        """Learn from training text."""

    def state(self) -> dict[str, Tensor]:
        """What was learned, to be saved."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""

    @contextmanager
    def applied(self, model: Any) -> Iterator[None]:
        """Inside, the layers that Focus took attend like this."""
        focus = model.focus
        before, focus.rival = focus.rival, self
        try:
            yield
        finally:
            focus.rival = before

    def chosen(self, text: Text) -> Tensor:
        """Bool [Hq or 1, n, n]: the distant keys that are seen; what it says of others is not looked at."""
        raise NotImplementedError

    def visible(self, text: Text) -> Tensor:
        """Bool [Hq or 1, n, n]: all that is seen."""
        distance = text.distance()
        near = (distance <= self.window) | (torch.arange(text.tokens, device=distance.device) < self.sinks)
        return (distance >= 0) & (near | self.chosen(text))

    def attend(self, text: Text) -> tuple[Tensor, float]:
        """Output [Hq, n, Dv], and the visible pairs of an average head."""
        mask = self.visible(text)
        out = scaled_dot_product_attention(
            text.query[None], text.key[None], text.value[None], mask[None], scale=text.scale, enable_gqa=True
        )
        return out[0], int(mask.sum()) / mask.shape[0]

    def __call__(self, seen: Seen, layers: int) -> tuple[Tensor, Tensor]:
        """Output [B, Hq, T, Dv] of a layer's call, and [visible, causal, local] pairs."""
        for option in ("softcap", "sink_logits"):
            if seen.options.get(option) is not None:
                raise FocusError(f"{self.name} knows no {option} (layer {seen.index}): compare on another model")
        query, key, value = seen.query, seen.key, seen.value
        out = query.new_zeros(*query.shape[:3], value.shape[3])
        pairs = torch.zeros(3, dtype=torch.float64)
        for row, place in documents(seen.routed.layout.documents, query.shape[0], query.shape[2]):
            q, k, v = (x[row][:, place] for x in (query, key, value))
            found, visible = self.attend(Text(seen.index, layers, q, k, v, seen.options["scale"]))
            out[row, :, place] = found.to(out.dtype)
            n, beyond = found.shape[1], max(found.shape[1] - self.window - 1, 0)
            causal = n * (n + 1) / 2
            pairs += torch.tensor([visible, causal, causal - beyond * (beyond + 1) / 2], dtype=torch.float64)
        return out, pairs


def documents(numbers: Tensor | None, batch: int, tokens: int) -> Iterator[tuple[int, Any]]:
    """(row, where its tokens are) of each document; numbers [B, T] are -1 at padding, None without any."""
    for row in range(batch):
        if numbers is None:
            yield row, slice(0, tokens)
            continue
        for number in numbers[row].unique().tolist():
            if number >= 0:
                yield row, (numbers[row] == number).nonzero()[:, 0]


def budgets(text: Text, rival: Rival, unit: int = 1) -> Tensor:
    """[n]: how many units of `unit` keys each query may choose, of those that lie between the sinks and its window."""
    place = torch.arange(text.tokens, device=text.query.device)
    return ((place - rival.window - rival.sinks).clamp_min(0) * rival.share / unit).round().long()


def best(scores: Tensor, allowed: Tensor, budget: Tensor) -> Tensor:
    """Bool like scores [H, n, N]: in each row the `budget` [n] best of the `allowed` [n, N]."""
    scores = scores.masked_fill(~allowed, float("-inf"))
    most = int(budget.max()) if budget.numel() else 0
    if most == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    values, where = scores.topk(most, -1)
    taken = (torch.arange(most, device=scores.device) < budget[:, None]) & values.isfinite()
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, where, taken)
