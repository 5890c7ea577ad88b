"""The chunked engine as a stream: append a chunk of keys, attend a chunk of queries; a chunk of one is decoding.

Keys live in three places, each row in one of them: the last `window` tokens before the chunk and the chunk itself in
position order, the sinks, and everything older in buckets, one per group (per set of groups for match "share"). A
stream that is attended densely at first holds those tokens in position order, all of them, until it is longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from . import contain, decode, stream_edit
from .errors import FocusError
from .plan import multi_hot, split_by_group
from .pool import Move, Name, Pool, held_size, page_of
from .problem import MATCHES, check_groups
from .recent import Recent
from .scratch import lasting


class KeyBuckets:
    """Keys and values of a batch of streams (one per row), held for sparse reading. For inference: no gradients."""

    recent: Tensor  # [2, B, Hkv, room, D], keys and values of the newest tokens in position order, after a margin
    groups: Tensor  # [B, room, k], of every token, by position
    pool: Pool  # the sinks of a row under the name (row,), everything older under (row, *bucket)
    key_size: int
    value_size: int

    def __init__(
        self,
        *,
        num_groups: int,
        window: int,
        sinks: int = 4,
        match: str = "probe",
        page: int | None = None,
        hold: int = 0,
        dtype: torch.dtype | None = None,
        directory: str | None = None,
    ):
        """`page`: what a bucket's first row is a multiple of; by default what the device's kernels want. `hold`: up to
        this length nothing goes into buckets, see `attend_chunk(dense=True)`. `dtype`: what keys and values are rounded
        to as they come in, and held in; by default they stay as they are. `directory`: the buckets are in files there.
        """
        if match not in MATCHES:
            raise FocusError(f"match is {match!r}; choose one of {', '.join(MATCHES)}")
        if not 0 <= sinks <= window:
            raise FocusError(f"sinks is {sinks}; it must be within 0..window ({window})")
        if num_groups < 1:
            raise FocusError(f"num_groups is {num_groups}; it must be at least 1")
        self.num_groups, self.window, self.sinks, self.match = num_groups, window, sinks, match
        self.page = 0 if page is None else page
        self.hold, self.dtype, self.directory = hold, dtype, directory
        self.expected = 0
        self.rows: list[Recent] = []
        self.broken: dict[int, contain.Broken] = {}  # by row: tokens that are NaN or infinite, held as zeros
        self.chunk: int | None = None  # tokens of the last chunk, padding included; None if there is none to attend

    @property
    def lengths(self) -> list[int]:
        """Real tokens seen so far, per row."""
        return [row.length for row in self.rows]

    @property
    def recent_key(self) -> Tensor:
        return self.recent[0]

    @property
    def recent_value(self) -> Tensor:
        return self.recent[1]

    @property
    def device(self) -> torch.device | None:
        """Where the keys are; None while the stream is empty."""
        return self.recent.device if self.rows else None

    def memory(self) -> int:
        """Bytes held: keys, values and groups, with the room kept for more."""
        if not self.rows:
            return 0
        return self.pool.memory() + sum(x.numel() * x.element_size() for x in (self.recent, self.groups))

    def expect(self, tokens: int) -> None:
        """A row is going to be this long: buckets get room for it as they grow, instead of moving again and again."""
        self.expected = tokens

    def kept(self, length: int) -> int:
        """How many of a row's tokens stay in position order once it is this long and its last chunk is attended."""
        return length if length <= self.hold else min(self.window, length)

    def append(self, key: Tensor, value: Tensor, groups: Tensor, padding_mask: Tensor | None = None) -> None:
        """Take in a chunk: key [B, Hkv, c, D], value [B, Hkv, c, Dv], groups [B, c, k]; mask [B, c] as in prefill."""
        key, value, bad = contain.clean(key, value)
        if not (self.rows and decode.append_token(self, key, value, groups, padding_mask)):
            self._append(key, value, groups, padding_mask)
        if bad is not None:
            contain.remember(self, bad, groups, padding_mask)

    def _append(self, key: Tensor, value: Tensor, groups: Tensor, padding_mask: Tensor | None) -> None:
        key, value = self._admit(key, value, groups, padding_mask, groups.shape[1])
        self._evict(key.shape[2], padding_mask)
        self.chunk = key.shape[2]
        self.make_room(self.chunk)
        self._give_back(self.chunk)  # of tokens that were held in order and are in buckets now
        moves: list[Move] = []
        for number, row in enumerate(self.rows):
            row.places = _real(padding_mask, number, key.device)
            places = slice(None) if row.places is None else row.places
            new_key, new_value = key[number][:, places], value[number][:, places]
            row.chunk, row.listed = self.note_groups(number, groups[number][places]), None
            moves += self._sink_moves(number, new_key, new_value)
            self._add_recent(number, new_key, new_value)
        self.pool.gather(moves)

    def prefill(self, key: Tensor, value: Tensor, groups: Tensor, padding_mask: Tensor | None = None) -> None:
        """Take in a chunk whose own queries are attended elsewhere, by `focus_attention`; arguments as for `append`.

        Leaves the stream as if the chunk had been appended and then all but its last `window` tokens filed away, but
        these go straight into their buckets. There is nothing to attend until the next `append`.
        """
        key, value, bad = contain.clean(key, value)
        key, value = self._admit(key, value, groups, padding_mask, self.kept(groups.shape[1]))
        self._evict()
        self._foresee(max(self.lengths) + key.shape[2] - self.window)
        self.chunk = None
        moves: list[Move] = []
        stay: list[tuple[Tensor, Tensor]] = []
        for number, row in enumerate(self.rows):
            real = _real(padding_mask, number, key.device)
            new_key, new_value = key[number], value[number]
            count = self.note_groups(number, groups[number][slice(None) if real is None else real])
            places = torch.arange(count, device=key.device) if real is None else real
            moves += self._sink_moves(number, new_key, new_value, places)
            gone = row.count + count - min(self.kept(row.length + count), row.count + count)
            old = min(gone, row.count)
            moves += self._leaving(number, old)
            through = gone - old  # of the chunk: never among the recent
            for name, index in self.by_bucket(number, row.length, through):
                moves.append(Move(name, new_key, new_value, places[index]))
            row.move(row.start + old, row.count - old)
            row.length += through
            row.chunk, row.places = 0, None
            last = slice(through, None) if real is None else real[through:]
            stay.append((new_key[:, last], new_value[:, last]))
        self.pool.gather(moves)
        self.make_room(max(new_key.shape[1] for new_key, _ in stay))
        for number, (new_key, new_value) in enumerate(stay):
            self._add_recent(number, new_key, new_value)
        if bad is not None:
            contain.remember(self, bad, groups, padding_mask)

    def file_away(self) -> None:
        """The last chunk was attended: all of it but the window goes into its buckets now, not when the next one comes,
        and the room that it took is given back. There is nothing to attend until the next `append`."""
        self._evict()
        self.chunk = None
        for row in self.rows:
            row.chunk, row.places = 0, None
        self._give_back()

    def crop(self, counts: Sequence[int]) -> None:
        """Forget the last counts[r] real tokens of row r; then append before attending."""
        stream_edit.crop(self, counts)

    def select_rows(self, indices: Tensor | Sequence[int]) -> None:
        """Make the batch these rows, in this order; a row may come several times, or not at all."""
        stream_edit.select_rows(self, indices)

    def to(self, device: torch.device | str) -> KeyBuckets:
        """Move everything, in place."""
        stream_edit.move(self, torch.device(device))
        return self

    def bucket_of(self, groups: Tensor) -> tuple[list[Name], Tensor]:
        """groups [n, k] -> bucket names, and for each token the number of its bucket among them."""
        if self.match == "probe" or groups.shape[1] == 1:
            return [(group,) for group in range(self.num_groups)], groups[:, 0]
        sets, kind = torch.unique(groups.sort(1).values, dim=0, return_inverse=True)
        return [tuple(s) for s in sets.tolist()], kind

    def bucket_name(self, groups: list[int]) -> Name:
        """The bucket of a token with these groups."""
        return (groups[0],) if self.match == "probe" else tuple(sorted(groups))

    def matching(self, number: int, groups: list[int]) -> list[Name]:
        """The lists of a row's pool that a query looking into these groups reads, sinks apart."""
        if self.match == "probe" or self.groups.shape[2] == 1:
            return [name for group in groups if (name := (number, group)) in self.pool.spans]
        wanted = set(groups)
        return [name for name in self.pool.spans if name[0] == number and not wanted.isdisjoint(name[1:])]

    def by_bucket(self, number: int, first: int, count: int) -> Iterator[tuple[Name, Tensor]]:
        """Of a row's tokens at positions [first, first + count), those of each bucket, counted from `first`; the
        sinks are in none."""
        skip = min(max(self.sinks - first, 0), count)
        if skip == count:
            return
        names, kind = self.bucket_of(self.groups[number, first + skip : first + count])
        for name, index in zip(names, split_by_group(kind, len(names), skip), strict=True):
            if index.numel():
                yield (number, *name), index

    def straighten(self) -> None:
        """Recent tokens in position order again and all groups written down, as all but decoding expects them."""
        for number, row in enumerate(self.rows):
            self.settle(number)
            if row.turn:
                mine = self.recent[:, number].narrow(2, row.start, row.count)
                mine.copy_(mine.roll(-row.turn, 2))
            row.turn, row.ids = 0, None

    def settle(self, number: int) -> None:
        """Write down the groups that decoding has only taken note of."""
        row = self.rows[number]
        if row.pending:
            newest = torch.tensor(row.newest(row.pending), dtype=self.groups.dtype)
            self.note_groups(number, newest, row.length - row.pending)
            row.pending = 0

    def recent_groups(self, number: int) -> Tensor:
        """[count, k], of a row's recent tokens."""
        row = self.rows[number]
        return self.groups[number, row.first : row.length]

    def query_groups(self, number: int, given: Tensor | None) -> Tensor:
        """[chunk, k], where a row's queries look: their own groups, unless others [B, c, k'] are given."""
        row = self.rows[number]
        if given is None:
            return self.groups[number, row.length - row.chunk : row.length]
        return given[number] if row.places is None else given[number][row.places]

    def readers(self, number: int, chunk: Tensor) -> dict[Name, Tensor]:
        """For each bucket name of a row, in order, which of the queries, of groups chunk [m, k], read it."""
        recent = self.recent_groups(number)
        names, _ = self.bucket_of(recent)
        if self.match == "probe" or recent.shape[1] == 1:
            return dict(zip(names, split_by_group(chunk, self.num_groups), strict=True))
        names = sorted({*names, *(name[1:] for name in self.pool.spans if name[0] == number and len(name) > 1)})
        hot = multi_hot(chunk, self.num_groups, torch.float32)
        overlap = hot @ multi_hot(torch.tensor(names, device=chunk.device), self.num_groups, torch.float32).T > 0
        return {name: overlap[:, n].nonzero()[:, 0] for n, name in enumerate(names)}

    def _admit(
        self, key: Tensor, value: Tensor, groups: Tensor, padding_mask: Tensor | None, stay: int
    ) -> tuple[Tensor, Tensor]:
        """Check a chunk, and give keys and values the one head size that the kernels want; so many of it are going to
        stay in position order."""
        self._check(key, value, groups, padding_mask)
        if (self.dtype or self.directory) and key.device.type != "cpu":
            raise FocusError(
                f"keys are on {key.device}: a dtype of their own ({self.dtype}) and files ({self.directory}) are for "
                "streams on a CPU; load the model in a smaller dtype, or offload its cache"
            )
        key, value = self.rounded(key), self.rounded(value)
        self.key_size, self.value_size = key.shape[3], value.shape[3]
        self.page = self.page or page_of(key.device)
        size = held_size(max(self.key_size, self.value_size), self.page)
        key, value = (x.detach() for x in (key, value))
        key, value = (x if x.shape[3] == size else F.pad(x, (0, size - x.shape[3])) for x in (key, value))
        if not self.rows:
            self._allocate(key, groups, stay)
        return key, value

    def rounded(self, x: Tensor) -> Tensor:
        """As it is going to be held, in its own dtype."""
        return x if self.dtype in (None, x.dtype) else x.to(self.dtype).to(x.dtype)

    def _leaving(self, number: int, count: int) -> list[Move]:
        """The oldest `count` recent tokens of a row, on their way to the buckets."""
        row = self.rows[number]
        keys, values = self.recent_key[number], self.recent_value[number]
        buckets = self.by_bucket(number, row.first, count)
        return [Move(name, keys, values, index + row.start) for name, index in buckets]

    def _sink_moves(self, number: int, key: Tensor, value: Tensor, places: Tensor | None = None) -> list[Move]:
        """The sinks among new tokens of a row, which are copied at once: key and value [H, n, D], or at `places`."""
        fresh = min(max(self.sinks - self.rows[number].length, 0), key.shape[1] if places is None else places.numel())
        if not fresh:
            return []
        index = torch.arange(fresh, device=key.device) if places is None else places[:fresh]
        return [Move((number,), key, value, index)]

    def _evict(self, coming: int = 0, padding_mask: Tensor | None = None) -> None:
        """Move what the next `coming` tokens see only from afar into the buckets; sinks have a place of their own."""
        self.straighten()
        counts = [coming] * len(self.rows)
        if self.hold and padding_mask is not None:
            counts = padding_mask.sum(1).tolist()
        moves: list[Move] = []
        for number, (row, count) in enumerate(zip(self.rows, counts, strict=True)):
            gone = row.count - self.kept(row.length + count)
            if gone > 0:
                moves += self._leaving(number, gone)
                row.move(row.start + gone, row.count - gone)
        self._foresee(max(row.first for row in self.rows))
        self.pool.gather(moves)

    def _foresee(self, filed: int) -> None:
        """How many times longer buckets are going to be than with this many tokens in them; of none, that cannot be
        told. The last window of tokens never gets there."""
        self.pool.growth = max((self.expected - self.window) / filed, 1.0) if filed > 0 else 1.0

    def _add_recent(self, number: int, key: Tensor, value: Tensor) -> None:
        """New tokens [H, n, D] at the end of a row's recent ones, which must have room."""
        row = self.rows[number]
        count = key.shape[1]
        for part, new in zip(self.recent[:, number], (key, value), strict=True):
            part.narrow(1, row.start + row.count, count).copy_(new)
        row.count, row.length = row.count + count, row.length + count

    def note_groups(self, number: int, groups: Tensor, first: int | None = None) -> int:
        """Write down the groups [n, k] of a row's tokens from a position on, by default the next ones; gives n."""
        first, count = self.rows[number].length if first is None else first, groups.shape[0]
        held = self.groups.shape[1]
        if first + count > held:
            self.groups = lasting(F.pad)(self.groups, (0, 0, 0, _with_spare(first + count) - held))
        self.groups[number, first : first + count] = groups
        return count

    def make_room(self, chunk: int) -> None:
        """Room for `chunk` more tokens at the end of every row's recent ones; in front of them, a margin that the
        sinks fit into."""
        if all(row.start + row.count + chunk <= self.recent.shape[3] for row in self.rows):
            return
        self._reseat(self._room(max(row.count for row in self.rows) + chunk))

    def _give_back(self, coming: int = 0) -> None:
        """Recent tokens, with so many more to come, in a smaller buffer if theirs is twice what they need."""
        room = self._room(max(row.count for row in self.rows) + coming)
        if self.recent.shape[3] > 2 * room:
            self._reseat(room)

    def _room(self, needed: int) -> int:
        return self.sinks + needed + max(self.window // 4, 16, needed // 16 if self.hold else 0)

    def _reseat(self, room: int) -> None:
        """Recent tokens in a buffer of another size, from its beginning on."""
        recent = lasting(self.recent.new_empty)(*self.recent.shape[:3], room, self.recent.shape[4])
        for number, row in enumerate(self.rows):
            old = self.recent[:, number].narrow(2, row.start, row.count)
            recent[:, number].narrow(2, self.sinks, row.count).copy_(old)
            row.move(self.sinks, row.count)
        self.recent = recent

    @lasting
    def _allocate(self, key: Tensor, groups: Tensor, stay: int) -> None:
        batch, heads, tokens, size = key.shape
        self.rows = [Recent(start=self.sinks) for _ in range(batch)]
        self.pool = Pool(key[0], self.page, self.dtype, self.directory)
        self.recent = key.new_empty(2, batch, heads, self._room(stay), size)
        small = torch.int16 if self.num_groups <= torch.iinfo(torch.int16).max else torch.int32
        self.groups = groups.new_zeros(batch, _with_spare(tokens), groups.shape[2], dtype=small, device=key.device)

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
            held = self.recent  # [2, B, Hkv, room, D]
            if key.shape[:2] != held.shape[1:3] or key.dtype != held.dtype or key.device != held.device:
                raise FocusError(
                    f"this chunk is {list(key.shape)} {key.dtype} on {key.device}, the stream holds {len(self.rows)} "
                    f"rows with {held.shape[2]} heads of {held.dtype} on {held.device}"
                )
            if (key.shape[3], value.shape[3]) != (self.key_size, self.value_size):
                raise FocusError(
                    f"this chunk has head sizes {key.shape[3]} and {value.shape[3]}, earlier ones {self.key_size} and "
                    f"{self.value_size}"
                )
            if groups.shape[2] != self.groups.shape[2]:
                raise FocusError(f"this chunk lists {groups.shape[2]} groups, earlier ones {self.groups.shape[2]}")


def _with_spare(tokens: int) -> int:
    """Room for the groups of this many tokens, and for some more."""
    return tokens + max(tokens // 16, 64)


def _real(padding_mask: Tensor | None, number: int, device: torch.device) -> Tensor | None:
    """The places of a row's real tokens, None for all of them."""
    if padding_mask is None or bool(padding_mask[number].all()):
        return None
    return padding_mask[number].nonzero()[:, 0].to(device)
