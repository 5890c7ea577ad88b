"""Cutting a plan into tiles for a primitive that knows rectangles, a causal square and a mask.

A tile's shape decides the order in which a matrix product adds, so no shape may depend on tokens after its rows:
tiles start at fixed ranks of a list, are sized by how much of the sequence is left, and are padded to whole units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import torch
from torch import Tensor

from .plan import Bucket, multi_hot
from .problem import Problem
from .scratch import lasting, scratch
from .tiles import Tile

BAND_ROWS = 2048  # rows of the band, or against the sinks, handled at once: bounds the memory of copies and results
STAIR_BLOCKS = 8  # masked tiles handled at once: bounds the memory of their masks


LEAST = {256: 768, 64: 192, 32: 0}  # rows that a call of aten's has at least, for blocks of so many


@dataclass(frozen=True)
class Grain:
    """Rows of a tile and of its masked parts (sub), and the units a part-filled tile is padded to.

    aten handles blocks of 256, 64 or 32 rows, by how many there are: each grain stays within one class, so that every
    matrix product in it has the same number of rows however full the tile is.
    """

    rows: int
    sub: int
    unit: int
    least: int
    fold: bool = False  # heads that share keys may be folded into its rows

    def padded(self, rows: int, most: int) -> int:
        """Rows to compute for `rows` wanted ones, of which there can never be more than `most`."""
        return min(max(-(-rows // self.unit) * self.unit, self.least), self.rows, most)


LARGE = Grain(rows=1024, sub=256, unit=256, least=768)
BROAD = Grain(rows=576, sub=192, unit=64, least=192)  # 512 and the sinks, and groups a little larger than even
MEDIUM = Grain(rows=256, sub=256, unit=256, least=256, fold=True)
SMALL = Grain(rows=160, sub=160, unit=32, least=32)
TINY = Grain(rows=32, sub=32, unit=32, least=32)
CAUSAL = ((850, LARGE), (400, BROAD), (160, MEDIUM), (24, SMALL))  # (rows expected at least, grain)
MASKED = ((1200, LARGE), (160, MEDIUM), (24, SMALL))


def pick_grain(expected: float, causal: bool, sharing: int = 1) -> Grain:
    """The grain for a list that will hold about this many more rows; a causal square has no mask and may be larger.
    sharing: how many query heads have one key head."""
    grain = next((grain for least, grain in (CAUSAL if causal else MASKED) if expected >= least), TINY)
    return grain if causal or grain is not SMALL else folded_small(sharing)


@cache
def folded_small(sharing: int) -> Grain:
    """SMALL for heads that share keys: folded into rows they fill larger blocks of aten's, always whole ones."""
    for block, least, most in ((256, 768, 1 << 30), (64, 192, 767)):
        unit = next(unit for unit in range(32, 257, 32) if sharing * unit % block == 0)
        low, high = -(-least // (sharing * unit)) * unit, min(192, most // sharing) // unit * unit
        if sharing > 1 and unit <= 64 and low <= min(96, high):
            return Grain(rows=high, sub=high, unit=unit, least=low, fold=True)
    return SMALL


@dataclass(frozen=True)
class Piece:
    """One tile of a bucket: rows [start, start + count) of its list, kept at `offset` of a batch's buffer."""

    start: int
    count: int
    offset: int
    grain: Grain


@dataclass(frozen=True)
class Cut:
    """A bucket cut into pieces; its rows and keys begin at these places of the batch's buffers."""

    bucket: Bucket
    pieces: tuple[Piece, ...]
    row_offset: int
    key_offset: int
    length: int  # of the sequence

    @property
    def row_end(self) -> int:
        return self.pieces[-1].offset + self.pieces[-1].grain.rows

    def padded(self, rows: Tensor) -> Tensor:
        """One entry per row of the buffer: the list, its last entry repeated."""
        place = torch.arange(self.row_end - self.row_offset, device=rows.device)
        return rows[place.clamp_(max=rows.numel() - 1)]


def cut(
    bucket: Bucket,
    rows: Tensor,
    length: int,
    share: float,
    causal: bool,
    row_offset: int,
    key_offset: int,
    origin: int = 0,
    sharing: int = 1,
) -> Cut:
    """Cut the increasing positions `rows` (from `origin`) of a sequence of `length`; about a `share` of it is listed.

    The size of a tile follows from where it starts, never from how many rows turned out to follow.
    """
    pieces: list[Piece] = []
    start, total = 0, rows.numel()
    while start < total:
        grain = pick_grain((origin + length - int(rows[start])) * share, causal, sharing)
        pieces.append(Piece(start, min(grain.rows, total - start), row_offset + start, grain))
        start += grain.rows
    return Cut(bucket, tuple(pieces), row_offset, key_offset, length)


def rectangle(piece: Piece, c: Cut, key_start: int, width: int, first: bool = False) -> Tile:
    """All rows of a piece against whole keys."""
    rows = piece.grain.padded(piece.count, c.length)
    return Tile(piece.offset, rows, key_start, width, first=first, fold=piece.grain.fold)


def whole_tiles(c: Cut, key_start: int, width: int, expected: float, sharing: int) -> Iterator[Tile]:
    """All rows of a list against whole keys, about `expected` of them, each for `sharing` heads that share keys."""
    block = next(block for block, least in LEAST.items() if expected * sharing >= 1.3 * least)
    below = min((least for least in LEAST.values() if least > LEAST[block]), default=1 << 20)
    most, total = max((below - 1) // block * block // sharing, 1), sum(piece.count for piece in c.pieces)
    for start in range(0, total, most):
        size = min(most, total - start)
        yield Tile(c.row_offset + start, size, key_start, width, first=True, block=block)


def causal_tiles(cuts: list[Cut]) -> Iterator[Tile]:
    """Buckets whose rows are their keys: a causal square per tile (neighbours in one call), whole rectangles before."""
    pieces = [piece for c in cuts for piece in c.pieces]
    for first, count in _equal_neighbours([(p.offset, p.grain.rows) for p in pieces]):
        grain, start = pieces[first].grain, pieces[first].offset
        rows, sub = grain.rows, grain.sub if grain is BROAD else grain.rows
        yield Tile(start, sub, start, sub, count * rows // sub, sub, causal=True, first=True)
        for s in range(sub, rows, sub):  # the primitive computes a square whole: what is below needs no causality
            yield Tile(start + s, sub, start, s, count, rows, row_step=rows)
    for c in cuts:
        for piece in c.pieces:
            if piece.start:
                yield rectangle(piece, c, c.key_offset, piece.start)


def stair_tiles(cuts: list[Cut], expected: float, top_k: int, dtype: torch.dtype) -> Iterator[Tile]:
    """Rows that see the first `reach` keys of their bucket: masked tiles for the few keys beyond the reach of a part's
    first row, rectangles for all before. A bucket has about `expected` rows."""
    subs = [(piece.offset + s, piece.grain.sub) for c in cuts for piece in c.pieces for s in _parts(piece)]
    # of every row of the buffer, counted in keys of the buffer
    reach = torch.cat([c.padded(c.bucket.reach) + c.key_offset for c in cuts])
    base = reach[torch.tensor([start for start, _ in subs], device=reach.device)]
    known = dict(zip((start for start, _ in subs), base.tolist(), strict=True))
    last_key = int(reach.max()) - 1

    for first, count in _equal_neighbours(subs, STAIR_BLOCKS):
        start, rows = subs[first]
        width = -(-int(min(rows, expected) // top_k + 48) // 64) * 64
        begin = base[first : first + count]
        beyond = reach[start : start + count * rows].view(count, rows) - begin[:, None]
        table = _stair_masks(width, dtype, reach.device)
        place = torch.arange(width, device=reach.device)
        for step in range(0, max(int(beyond.max()), 1), width):
            yield Tile(
                start,
                rows,
                0,
                width,
                count,
                key_index=(begin[:, None] + (place + step)).clamp_(max=last_key),
                mask=table.index_select(0, (beyond - step).clamp_(0, width).view(-1)).view(count, 1, rows, width),
                first=step == 0,
            )
    for c in cuts:
        for piece in c.pieces:
            before = known[piece.offset]
            if before > c.key_offset:
                yield rectangle(piece, c, c.key_offset, before - c.key_offset)
            for s in _parts(piece):
                here = known[piece.offset + s]
                if here > before:
                    yield Tile(piece.offset + s, piece.grain.sub, before, here - before, fold=piece.grain is LARGE)


def _parts(piece: Piece) -> range:
    return range(0, piece.count, piece.grain.sub)


def _equal_neighbours(spans: list[tuple[int, int]], most: int = 1 << 30) -> Iterator[tuple[int, int]]:
    """(first, count) of runs of (start, size) spans that touch and are of one size."""
    first = 0
    for number in range(1, len(spans) + 1):
        if (
            number == len(spans)
            or number - first >= most
            or spans[number] != (sum(spans[number - 1]), spans[number - 1][1])
        ):
            yield first, number - first
            first = number


@lru_cache(maxsize=16)
@lasting
def _stair_masks(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[width + 1, width] additive masks: row b leaves the first b keys open."""
    place = torch.arange(width + 1, device=device)
    return torch.zeros(width + 1, width, dtype=dtype, device=device).masked_fill_(
        place[:width] >= place[:, None], closed(dtype)
    )


def closed(dtype: torch.dtype) -> float:
    """The logit of a masked pair: finite, so that a fully masked row merges with weight 0 instead of NaN."""
    return torch.finfo(dtype).min / 2


def bucket_marks(groups: Tensor, problem: Problem, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[n, K] of queries and of keys, whose products are below any logit where a pair is in a bucket of the sorted
    engine (it matches, or its key is a sink) and 0 elsewhere. groups [n, k]."""
    key = multi_hot(groups, problem.num_groups, dtype)
    query = key * (closed(dtype) / (2 * groups.shape[1]))  # with what the band's mask adds it stays finite
    query[: problem.sinks] = 0  # sink queries find all their keys in the band
    key[: problem.sinks] = 1
    return query, key


def without_buckets(tile: Tile, row: int, key: int, marks: tuple[Tensor, Tensor], first: bool) -> Tile:
    """A tile of the band, its rows and keys counted from `row` and `key`, less the pairs that are in buckets; its mask
    lasts until the next one is made."""
    queries, keys = tile.rows(marks[0][None, row:])[:, 0], tile.columns(marks[1][None, key:])[:, 0]
    mask = tile.mask
    if mask is None:  # a causal square: its window holds every key
        mask = _band_mask(tile.size, tile.size, queries.dtype, queries.device)[None, None, :, tile.size :]
    room = scratch.room("mask", (tile.count, tile.size, tile.width), queries)
    torch.baddbmm(mask[0], queries, keys.transpose(1, 2), out=room)
    return replace(tile, mask=room[:, None], causal=False, first=first)


def band_tiles(
    length: int, window: int, dtype: torch.dtype, device: torch.device, history: int = 0
) -> Iterator[tuple[int, int, Tile]]:
    """The causal band i - j <= window for rows from `history` on, as (first row, first key, tile); rows and keys of a
    tile count from these."""
    head = length if length <= window + 1 else window  # rows that see everything; then usually whole blocks are left
    if head > history:
        rows = head - history
        yield history, history, Tile(0, rows, 0, rows, causal=True, first=True)
        if history:
            yield history, 0, Tile(0, rows, 0, history)
    rows, most = 64 if window <= 256 else 256, min(max(length // 4, BAND_ROWS // 2), BAND_ROWS)
    start = max(head, history)
    mask = _band_mask(min(rows, max(length - start, 0)), window, dtype, device)
    while start < length:
        count = min((length - start) // rows, max(most // rows, 1))
        size = rows if count else length - start
        count = max(count, 1)
        part = mask[None, None, :size, : window + size]
        yield start, start - window, Tile(0, size, 0, window + size, count, size, mask=part, first=True)
        start += count * size


@lru_cache(maxsize=4)
@lasting
def _band_mask(rows: int, window: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    i, j = torch.arange(rows, device=device)[:, None], torch.arange(window + rows, device=device)
    mask = torch.zeros(rows, window + rows, dtype=dtype, device=device)
    return mask.masked_fill_((j < i) | (j > i + window), closed(dtype))


def sink_tiles(rows: int, first: int, window: int, sinks: int, dtype: torch.dtype, device: torch.device) -> list[Tile]:
    """Rows from position `first` on, which sees one, against the sinks: sink j is far once i - j > window."""
    partial = min(max(window + sinks - first, 0), rows)  # rows that see only some of them
    tiles = []
    if partial:
        seen = torch.arange(first - window, first - window + partial, device=device)
        mask = torch.zeros(partial, sinks, dtype=dtype, device=device)
        mask.masked_fill_(torch.arange(sinks, device=device) >= seen[:, None], closed(dtype))
        tiles.append(Tile(0, partial, 0, sinks, mask=mask[None, None]))
    for start in range(partial, rows, BAND_ROWS):
        tiles.append(Tile(start, min(BAND_ROWS, rows - start), 0, sinks))
    return tiles
