"""The cache of a retrofitted model: transformers' layers, with keys and values in buckets, one per group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from focus_kernels import FocusError, KeyBuckets

from .config import FocusConfig
from .lane import FEW, Lane
from .token_router import TokenRouter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .router import Router


class FocusLayer(DynamicLayer):
    """One layer's keys and values: the sinks, the window, and a bucket per group; each row is stored once.

    `update` hands a chunk on to the attention function, which knows its groups and commits it (`commit`).
    """

    def __init__(
        self,
        config: FocusConfig,
        owner: str = "",
        hold: int = 0,
        held_dtype: torch.dtype | None = None,
        directory: str | None = None,
    ):
        super().__init__()
        self.config, self.owner = config, owner  # owner: the adapter whose groups it holds
        self.hold, self.held_dtype, self.directory = hold, held_dtype, directory  # as in KeyBuckets
        self.reset()

    def reset(self) -> None:
        """As new."""
        super().reset()
        self.lane: Lane | None = None  # where all tokens are while there are few; then the buckets are empty
        self._buckets = self._empty_buckets()
        self.tokens: TokenRouter | None = None
        self.next: tuple[Tensor, Router] | None = None  # the next chunk is for the lane: what to route it by
        self.handed_out = False  # the last chunk went there: the base attends, to all keys
        self.offloaded = False
        self.expected = False  # a Focus attention function is going to take the next chunk
        self.chunk: tuple[Tensor, Tensor] | None = None  # updated, not yet committed
        self.columns: Tensor | None = None  # [B, T] true at real tokens, once there was padding
        self.length = 0  # committed tokens, padding included

    @property
    def buckets(self) -> KeyBuckets:
        """With all tokens in them."""
        if self.lane is not None:
            lane, self.lane = self.lane, None
            lane.close(self._buckets)
        return self._buckets

    def _empty_buckets(self) -> KeyBuckets:
        return KeyBuckets(
            num_groups=self.config.num_groups,
            window=self.config.window,
            sinks=self.config.sinks,
            match=self.config.match,
            hold=self.hold,
            dtype=self.held_dtype,
            directory=self.directory,
        )

    def __getstate__(self) -> dict[str, Any]:
        """For a copy, or a file."""
        return {**vars(self), "_buckets": self.buckets, "lane": None}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def announce(self, token: tuple[Tensor, Router] | None = None) -> None:
        """A Focus attention function is going to take the next chunk; if it is for the lane, what to route it by."""
        self.expected, self.handed_out, self.next = True, False, token

    def has_lane(self, hidden: Tensor) -> bool:
        """New tokens, by their hidden states [B, c, d], may go where all others are, in order: the first few, or a
        single one."""
        tokens = hidden.shape[1]
        if self.columns is not None or self.length + tokens > self.hold:
            return False
        if self.lane is not None:
            return tokens == 1
        if self.offloaded or self.config.leaks:
            return False
        if not self.length:
            return hidden.numel() <= FEW
        if tokens == 1:
            self._reopen()
        return self.lane is not None

    def _reopen(self) -> None:
        """Into a lane again, what is in order in the buckets."""
        old = self._buckets
        first = old.rows[0].start
        whole = all((row.start, row.count, row.length) == (first, self.length, self.length) for row in old.rows)
        if old.broken or not whole:
            return
        old.straighten()
        key, value = (x[:, :, first : first + self.length] for x in old.recent)
        self._buckets = self._empty_buckets()
        self._buckets.expect(old.expected)
        self.lane = Lane(key[..., : old.key_size], value[..., : old.value_size], old.groups[:, : self.length].long())

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Take a chunk in; returns the chunk alone: what came before stays in its buckets. A token that attends densely
        gets everything, in order."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        token, self.next = self.next, None
        if token is not None:
            if self.held_dtype is not None:
                key_states, value_states = map(self._buckets.rounded, (key_states, value_states))
            everything = self._take(key_states, value_states, *token)
            if everything is not None:
                self.expected, self.handed_out, self.length = False, True, self.length + key_states.shape[2]
                return everything
        if not self.expected:
            raise FocusError(
                "this cache was made by Focus attention and is now used without it (inside disabled(), in soft mode, "
                "or after unload()): start a new cache there"
            )
        # rounded before anything sees them, so that it does not matter in which chunk a token comes
        self.expected, self.chunk = False, (self.buckets.rounded(key_states), self.buckets.rounded(value_states))
        return self.chunk

    def _take(self, key: Tensor, value: Tensor, hidden: Tensor, router: Router) -> tuple[Tensor, Tensor] | None:
        """Into the lane, see there."""
        if self.lane is not None:
            return self.lane.take(key, value, hidden, router)
        if key.dtype != value.dtype:
            return None
        self.tokens, self.lane = None, Lane(key, value)
        self.lane.route_later(hidden, router)
        return key, value

    def take_chunk(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What `update` got, in the dtype of attention."""
        if self.chunk is None:
            raise FocusError("the attention module did not update its cache before attending")
        (key, value), self.chunk = self.chunk, None
        return key.to(dtype), value.to(dtype)

    def commit(self, key: Tensor, value: Tensor, groups: Tensor, real: Tensor | None) -> None:
        """Store a first chunk with its groups [B, c, k]; its own queries were served, they will not ask."""
        self.tokens = None  # a new text: the router may be another by now
        self.note_columns(groups.shape[:2], real)
        if groups.shape[1] <= self.hold and not self.offloaded and not self.config.leaks:
            self.lane = Lane(key, value, groups, real)
        else:
            self.buckets.prefill(key, value, groups, real)

    def note_columns(self, shape: Sequence[int], real: Tensor | None) -> None:
        """A chunk [B, c] is about to go into the buckets; `real` [B, c] says which of it are tokens."""
        self.prefetch()
        if real is not None or self.columns is not None:
            new = torch.ones(*shape, dtype=torch.bool) if real is None else real.cpu()
            old = torch.ones(len(new), self.length, dtype=torch.bool) if self.columns is None else self.columns
            self.columns = torch.cat([old, new], 1)
        self.length += shape[1]

    def expect(self, tokens: int) -> None:
        """Make room for this many tokens as it grows."""
        self._buckets.expect(tokens)

    def get_seq_length(self) -> int:
        return self.length + (0 if self.chunk is None else self.chunk[0].shape[-2])

    @property
    def batch_size(self) -> int:
        return len(self.buckets.rows if self.lane is None else self.lane.keys)

    def memory(self) -> int:
        """Bytes held."""
        held = self._buckets if self.lane is None else self.lane
        return held.memory() + (0 if self.columns is None else self.columns.numel())

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens, given as a negative number of them."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}): give the number of tokens to remove as a negative number")
        count = -tokens_to_remove
        if not count or not self.length:
            return
        if count > self.length:
            raise FocusError(f"crop({tokens_to_remove}): the cache holds {self.length} tokens")
        self.prefetch()
        counts: Sequence[int] = [count] * self.batch_size
        if self.columns is not None:
            counts = self.columns[:, self.length - count :].sum(1).tolist()
            self.columns = self.columns[:, : self.length - count]
        self.buckets.crop(counts)
        self.length -= count

    def _select(self, rows: Tensor) -> None:
        if self.length:
            if self.lane is not None:
                self.lane.select(rows)
            else:
                self.prefetch()
                self.buckets.select_rows(rows.cpu())
            if self.columns is not None:
                self.columns = self.columns[rows.cpu()]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select(torch.arange(self.batch_size).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._select(torch.arange(self.batch_size)[indices.cpu()])

    def offload(self) -> None:
        """To the CPU; transformers asks for it before the chunk is attended, so `release` does it once more."""
        self.offloaded = True
        self.release()

    def release(self, tokens: int = 0) -> None:
        """The attention of a chunk is done: a long one is filed away, an offloaded layer goes back to the CPU, and what
        is in files leaves memory, unless tokens come one by one."""
        if tokens > self.config.window and self._buckets.chunk is not None:
            self.buckets.file_away()
        if self.offloaded and self.length:
            self.buckets.to(torch.device("cpu"))
        if self.directory is not None and tokens > 1 and self.lane is None:
            self.buckets.pool.release()

    def prefetch(self) -> None:
        if self.length and self.buckets.device != self.device:
            self.buckets.to(self.device)


class FocusCache(DynamicCache):
    """A cache for a retrofitted model; `generate` and the model itself make one when none is given."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        dtype: torch.dtype | None = None,
        spill: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ):
        """`model`: retrofitted. `dtype`: hold keys and values rounded to it (bfloat16 halves the memory of float32).
        `spill`: hold those beyond the window in files of this directory, group by group, gone with the process. Other
        options are those of transformers' DynamicCache (offloading)."""
        focus = getattr(model, "focus", None)
        if focus is None:
            raise FocusError("FocusCache needs a retrofitted model: call retrofit(model, config) first")
        if dtype is not None and not dtype.is_floating_point:
            raise FocusError(f"dtype is {dtype}; a cache holds floating-point numbers, such as torch.bfloat16")
        super().__init__(config=model.config, **kwargs)
        for index in focus.layer_indices:
            held = (dtype, None if spill is None else os.fspath(spill))
            self.layers[index] = FocusLayer(focus.config, focus.name, focus.dense_below, *held)

    def expect(self, tokens: int) -> None:
        """Make room for a sequence of this length as layers grow."""
        for layer in self.layers:
            if isinstance(layer, FocusLayer):
                layer.expect(tokens)

    def memory(self) -> int:
        """Bytes held by all layers."""
        total = 0
        for layer in self.layers:
            if isinstance(layer, FocusLayer):
                total += layer.memory()
            else:
                held = (getattr(layer, name, None) for name in ("keys", "values"))
                total += sum(x.numel() * x.element_size() for x in held if x is not None)
        return total


def adopt(cache: Cache, index: int, config: FocusConfig, owner: str = "", hold: int = 0) -> FocusLayer:
    """The Focus layer of a cache, put in place of an empty plain one; other kinds are refused."""
    while cache.layer_class_to_replicate is not None and len(cache.layers) <= index:
        cache.layers.append(cache.layer_class_to_replicate())
    if index >= len(cache.layers):
        raise FocusError(f"the cache has {len(cache.layers)} layers, the model wants layer {index}")
    layer: Any = cache.layers[index]
    if isinstance(layer, FocusLayer):
        same = layer.config is config or layer.config == config
        if same and layer.owner == owner:
            return layer
        if layer.length:
            why = f"was filled by a model with other Focus options ({layer.config})"
            if layer.owner != owner:
                why = f"holds groups of the adapter {layer.owner!r}, {owner!r} is at work"
            raise FocusError(f"layer {index} of the cache {why}: start from an empty cache")
    if type(layer) not in (DynamicLayer, FocusLayer):
        raise FocusError(
            f"layer {index} of the cache is a {type(layer).__name__}, which cannot hold groups: let generate make its "
            "default cache (cache_implementation=None or 'offloaded'), or pass FocusCache(model)"
        )
    if layer.get_seq_length():
        raise FocusError(
            f"layer {index} of the cache holds {layer.get_seq_length()} tokens without groups (it was filled without "
            "Focus, or in soft mode): start from an empty cache"
        )
    adopted = FocusLayer(config, owner, hold)
    cache.layers[index] = adopted
    return adopted
