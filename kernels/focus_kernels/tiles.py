"""Running tiles: batches of equal rectangles of queries against keys, each one call of a backend's primitive.

Forward folds the calls into one softmax per row; backward hands each call the merged output and logsumexp, which is
what makes its gradient exact (P = exp(S - lse_merged), delta = rowsum(dO * O_merged)).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from .merge import merge_

MERGED_ROWS = 1024  # enough to make the overhead of a merge small
CONVERTED = 16384  # keys at most that are brought to the queries' dtype at once


class TileOps(Protocol):
    """What a tile backend provides; see backends/cpu.py."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        causal: bool = False,
        mask: Tensor | None = None,
        fold: bool = False,
        block: int = 0,
    ) -> tuple[Tensor, Tensor]: ...

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        *,
        scale: float,
        causal: bool = False,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True)
class Tile:
    """`count` blocks of `size` query rows from `start`, side by side or every `row_step`; block b reads `width` keys
    from key_start + b * key_step."""

    start: int
    size: int
    key_start: int
    width: int
    count: int = 1
    key_step: int = 0
    key_index: Tensor | None = None  # [count, width], where the keys are not evenly spaced
    mask: Tensor | None = None  # additive, [1 or count, 1, size, width]
    causal: bool = False
    first: bool = False  # the first tile to reach its rows: written, not merged
    row_step: int = 0
    fold: bool = False  # whatever follows, always of this many rows: heads that share keys may be folded into rows
    block: int = 0  # they are folded, and rows padded to whole blocks of this many: then any number may follow

    def rows(self, x: Tensor) -> Tensor:
        """[H, L, ...] -> [count, H, size, ...], a view."""
        if self.row_step and self.count > 1:
            part = x.narrow(1, self.start, (self.count - 1) * self.row_step + self.size)
            return part.unfold(1, self.size, self.row_step).transpose(0, 1).movedim(-1, 2)
        part = x.narrow(1, self.start, self.count * self.size)
        return part.unsqueeze(0) if self.count == 1 else part.unflatten(1, (self.count, self.size)).transpose(0, 1)

    def columns(self, x: Tensor) -> Tensor:
        """[H, N, D] -> [count, H, width, D], a view unless the keys are indexed."""
        if self.key_index is not None:
            return take(x, self.key_index.view(-1)).unflatten(1, self.key_index.shape).transpose(0, 1)
        part = x.narrow(1, self.key_start, (self.count - 1) * self.key_step + self.width)
        return part.unsqueeze(0) if self.count == 1 else part.unfold(1, self.width, self.key_step).permute(1, 0, 3, 2)

    def add_columns(self, x: Tensor, grad: Tensor) -> None:
        """The adjoint of `columns`: x [H, N, D] += grad [count, H, width, D]."""
        if self.key_index is None and (self.count == 1 or self.key_step >= self.width):
            self.columns(x).add_(grad)
            return
        index = self.key_index
        if index is None:
            steps = torch.arange(self.count, device=x.device) * self.key_step + self.key_start
            index = steps[:, None] + torch.arange(self.width, device=x.device)
        x.index_add_(1, index.reshape(-1), grad.transpose(0, 1).flatten(1, 2).to(x.dtype))


def take(x: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """x [H, N, D] -> [H, M, D]; head by head is several times faster on CPU than one advanced index."""
    if out is None:
        out = x.new_empty(x.shape[0], index.numel(), x.shape[2])
    for head in range(x.shape[0]):
        torch.index_select(x[head], 0, index, out=out[head])
    return out


def attend(
    ops: TileOps, tiles: Iterable[Tile], q: Tensor, k: Tensor, v: Tensor, scale: float, out: Tensor, lse: Tensor
) -> None:
    """Fold every tile into out [Hq, L, Dv] and lse [Hq, L]; what they held before is overwritten."""
    waiting: list[tuple[Tensor, Tensor]] = []  # of small tiles side by side, to be merged together
    start = end = 0

    def merge_waiting() -> None:
        if waiting:
            more = waiting[0][0] if len(waiting) == 1 else torch.cat([x for x, _ in waiting], 1)
            more_lse = waiting[0][1] if len(waiting) == 1 else torch.cat([x for _, x in waiting], 1)
            merge_(out[:, start:end], lse[:, start:end], more, more_lse)
            waiting.clear()

    for tile in tiles if k.dtype == q.dtype else narrowed(tiles):
        some = (tile.rows(q), tile.columns(k).to(q.dtype), tile.columns(v).to(q.dtype))
        more, more_lse = ops.forward(
            *some, scale=scale, causal=tile.causal, mask=tile.mask, fold=tile.fold, block=tile.block
        )
        if more.shape[-1] != out.shape[-1]:
            more = more[..., : out.shape[-1]]
        if tile.first:
            tile.rows(out).copy_(more)
            tile.rows(lse).copy_(more_lse)
        elif tile.count > 1:
            merge_(tile.rows(out), tile.rows(lse), more, more_lse)
        else:
            if tile.start != end or end - start >= MERGED_ROWS:
                merge_waiting()
                start = tile.start
            end = tile.start + tile.size
            waiting.append((more[0], more_lse[0]))
    merge_waiting()


def narrowed(tiles: Iterable[Tile]) -> Iterator[Tile]:
    """The same pairs, rectangles cut so that none reads more than CONVERTED keys."""
    for tile in tiles:
        if tile.causal or tile.mask is not None:
            yield tile
            continue
        for start in range(0, tile.width, CONVERTED):
            width = min(CONVERTED, tile.width - start)
            yield replace(tile, key_start=tile.key_start + start, width=width, first=tile.first and not start)


def attend_backward(
    ops: TileOps,
    tiles: Iterable[Tile],
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
) -> None:
    """Add every tile's gradients to dq [Hq, L, D], dk and dv [Hkv, N, D]; `out` and `lse` are the merged ones."""
    for tile in tiles:
        parts = ops.backward(
            tile.rows(grad),
            tile.rows(q),
            tile.columns(k),
            tile.columns(v),
            tile.rows(out),
            tile.rows(lse),
            scale=scale,
            causal=tile.causal,
            mask=tile.mask,
        )
        tile.rows(dq).add_(parts[0])
        tile.add_columns(dk, parts[1])
        tile.add_columns(dv, parts[2])
