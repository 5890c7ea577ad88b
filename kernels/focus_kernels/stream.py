"""The chunked engine as a stream: append a chunk of keys, attend a chunk of queries; a chunk of one is decoding.

Keys live in three places, each row in one of them: the last `window` tokens before the chunk and the chunk itself in
position order, the sinks, and everything older in buckets, one per group (per set of groups for match "share").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .plan import multi_hot, split_by_group
from .pool import Pool, empty_like_rows
from .problem import MATCHES, FocusError, check_groups
from .tiles import take

PAGE = 256  # rows of a page of FlashAttention-2


@dataclass
class Recent:
    """The newest tokens of one row: [start, start + count) of its buffer; the first has position `first`."""

    start: int = 0
    count: int = 0
    length: int = 0  # tokens ever seen
    chunk: int = 0  # real tokens of the last chunk
    places: Tensor | None = None  # where they stood in the chunk, if some of it was padding

    @property
    def first(self) -> int:
        return self.length - self.count


class KeyBuckets:
    """Keys and values of a batch of streams (one per row), held for sparse reading. For inference: no gradients."""

    recent_key: Tensor  # [B, Hkv, room, D], the newest tokens in position order
    recent_value: Tensor
    recent_groups: Tensor  # [B, room, k]
    pool: Pool  # the sinks of a row under the name (row,), everything older under (row, *bucket)
    key_size: int
    value_size: int

    def __init__(self, *, num_groups: int, window: int, sinks: int = 4, match: str = "probe", page: int | None = None):
        """`page`: what a bucket's first row is a multiple of; by default what the device's kernels want."""
        if match not in MATCHES:
            raise FocusError(f"match is {match!r}; choose one of {', '.join(MATCHES)}")
        if not 0 <= sinks <= window:
            raise FocusError(f"sinks is {sinks}; it must be within 0..window ({window})")
        if num_groups < 1:
            raise FocusError(f"num_groups is {num_groups}; it must be at least 1")
        self.num_groups, self.window, self.sinks, self.match = num_groups, window, sinks, match
        self.page = 0 if page is None else page
        self.rows: list[Recent] = []
        self.chunk = 0  # tokens of the last chunk, padding included

    @property
    def lengths(self) -> list[int]:
        """Real tokens seen so far, per row."""
        return [row.length for row in self.rows]

    def memory(self) -> int:
        """Bytes held for keys and values."""
        if not self.rows:
            return 0
        return self.pool.memory() + sum(x.numel() * x.element_size() for x in (self.recent_key, self.recent_value))

    def append(self, key: Tensor, value: Tensor, groups: Tensor, padding_mask: Tensor | None = None) -> None:
        """Take in a chunk: key [B, Hkv, c, D], value [B, Hkv, c, Dv], groups [B, c, k]; mask [B, c] as in prefill."""
        self._check(key, value, groups, padding_mask)
        self.key_size, self.value_size = key.shape[3], value.shape[3]
        self.page = self.page or (1 if key.device.type == "cpu" else PAGE)
        unit = 1 if self.page == 1 else 8
        size = -(-max(key.shape[3], value.shape[3]) // unit) * unit  # the kernels want one head size
        key, value = (F.pad(x.detach(), (0, size - x.shape[3])) for x in (key, value))
        if not self.rows:
            self._allocate(key, value, groups)
        self._evict()
        self.chunk = key.shape[2]
        self._make_room(self.chunk)
        for number, row in enumerate(self.rows):
            new_key, new_value, new_groups, row.places = key[number], value[number], groups[number], None
            if padding_mask is not None and not bool(padding_mask[number].all()):
                row.places = padding_mask[number].nonzero()[:, 0].to(key.device)
                new_key, new_value = new_key[:, row.places], new_value[:, row.places]
                new_groups = new_groups[row.places]
            count, end = new_key.shape[1], row.start + row.count
            self.recent_key[number][:, end : end + count] = new_key
            self.recent_value[number][:, end : end + count] = new_value
            self.recent_groups[number, end : end + count] = new_groups
            fresh = min(max(self.sinks - row.length, 0), count)
            if fresh:
                self.pool.reserve({(number,): fresh})
                self.pool.append((number,), new_key[:, :fresh], new_value[:, :fresh])
            row.count, row.length, row.chunk = row.count + count, row.length + count, count

    def bucket_of(self, groups: Tensor) -> tuple[list[tuple[int, ...]], Tensor]:
        """groups [n, k] -> bucket names, and for each token the number of its bucket among them."""
        if self.match == "probe" or groups.shape[1] == 1:
            return [(group,) for group in range(self.num_groups)], groups[:, 0]
        sets, kind = torch.unique(groups.sort(1).values, dim=0, return_inverse=True)
        return [tuple(s) for s in sets.tolist()], kind

    def readers(self, number: int) -> dict[tuple[int, ...], Tensor]:
        """For each bucket name of a row, in order, the places in the last chunk of the queries that read it."""
        row = self.rows[number]
        groups = self.recent_groups[number, row.start : row.start + row.count]
        chunk = groups[row.count - row.chunk :]
        names, _ = self.bucket_of(groups)
        if self.match == "probe" or groups.shape[1] == 1:
            return dict(zip(names, split_by_group(chunk, self.num_groups), strict=True))
        names = sorted({*names, *(name[1:] for name in self.pool.spans if name[0] == number and len(name) > 1)})
        hot = multi_hot(chunk, self.num_groups, torch.float32)
        overlap = hot @ multi_hot(torch.tensor(names, device=chunk.device), self.num_groups, torch.float32).T > 0
        return {name: overlap[:, n].nonzero()[:, 0] for n, name in enumerate(names)}

    def _evict(self) -> None:
        """Move what the next chunk sees only from afar into the buckets; sinks have a place of their own."""
        moves: list[tuple[int, Tensor, dict[tuple[int, ...], int]]] = []
        for number, row in enumerate(self.rows):
            gone = row.count - self.window
            if gone <= 0:
                continue
            skip = max(self.sinks - row.first, 0)  # sinks among them
            old = slice(row.start + min(skip, gone), row.start + gone)
            names, kind = self.bucket_of(self.recent_groups[number, old])
            lists = split_by_group(kind, len(names), old.start)
            counts = {(number, *name): x.numel() for name, x in zip(names, lists, strict=True) if x.numel()}
            if counts:
                moves.append((number, torch.cat(lists), counts))
            row.start, row.count = row.start + gone, self.window
        self.pool.reserve({name: count for _, _, counts in moves for name, count in counts.items()})
        for number, places, counts in moves:
            keys, values = take(self.recent_key[number], places), take(self.recent_value[number], places)
            start = 0
            for name, count in counts.items():
                self.pool.append(name, keys[:, start : start + count], values[:, start : start + count])
                start += count

    def _make_room(self, chunk: int) -> None:
        """Room for `chunk` more tokens at the end of every row's recent ones."""
        capacity = self.recent_key.shape[2]
        if all(row.start + row.count + chunk <= capacity for row in self.rows):
            return
        needed = max((row.count for row in self.rows), default=0) + chunk
        room = max(needed + max(self.window, 64), capacity)
        for name in ("recent_key", "recent_value"):
            old: Tensor = getattr(self, name)
            new = empty_like_rows(old, room)
            for number, row in enumerate(self.rows):
                new[number, :, : row.count] = old[number, :, row.start : row.start + row.count]
            setattr(self, name, new)
        groups = self.recent_groups.new_zeros(len(self.rows), room, self.recent_groups.shape[2])
        for number, row in enumerate(self.rows):
            groups[number, : row.count] = self.recent_groups[number, row.start : row.start + row.count]
            row.start = 0
        self.recent_groups = groups

    def _allocate(self, key: Tensor, value: Tensor, groups: Tensor) -> None:
        self.rows = [Recent() for _ in range(key.shape[0])]
        self.pool = Pool(key[0], value[0], align=self.page)
        self.recent_key, self.recent_value = empty_like_rows(key, 0), empty_like_rows(value, 0)
        self.recent_groups = groups.new_empty(groups.shape[0], 0, groups.shape[2])

    def _check(self, key: Tensor, value: Tensor, groups: Tensor, padding_mask: Tensor | None) -> None:
        if key.dim() != 4 or value.dim() != 4 or value.shape[:3] != key.shape[:3]:
            raise FocusError(
                f"key {list(key.shape)} and value {list(value.shape)} must be [B, H, c, D], alike but for D"
            )
        if groups.dim() != 3 or groups.shape[:2] != (key.shape[0], key.shape[2]):
            raise FocusError(f"groups must be [{key.shape[0]}, {key.shape[2]}, k], got shape {list(groups.shape)}")
        if padding_mask is not None and padding_mask.shape != groups.shape[:2]:
            raise FocusError(f"padding_mask must be {list(groups.shape[:2])}, got shape {list(padding_mask.shape)}")
        check_groups(groups, self.num_groups)
        if self.rows:
            held = self.recent_key
            if key.shape[0] != len(self.rows) or key.shape[1] != held.shape[1] or key.dtype != held.dtype:
                raise FocusError(
                    f"this chunk is {list(key.shape)} {key.dtype}, the stream holds {len(self.rows)} rows with "
                    f"{held.shape[1]} heads of {held.dtype}"
                )
            if (key.shape[3], value.shape[3]) != (self.key_size, self.value_size):
                raise FocusError(
                    f"this chunk has head sizes {key.shape[3]} and {value.shape[3]}, earlier ones {self.key_size} and "
                    f"{self.value_size}"
                )
            if groups.shape[2] != self.recent_groups.shape[2]:
                raise FocusError(
                    f"this chunk lists {groups.shape[2]} groups, earlier ones {self.recent_groups.shape[2]}"
                )
