"""What decoding is measured on: a stack of attention layers, each with a full cache and a bucketed one of the same
tokens, and the ways to attend one more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attend import attend_chunk
from ..reference import matches
from ..stream import KeyBuckets
from .gate import Red
from .problems import Layer

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # [1, Hq, 1, D], [1, Hkv, n, D] twice -> Hq * D numbers


@dataclass
class Token:
    """One layer's next token."""

    query: Tensor  # [1, Hq, 1, D]
    key: Tensor  # [1, Hkv, 1, D]
    value: Tensor
    groups: Tensor  # [1, 1, k]


class Memory:
    """One layer's keys and values, twice: in position order with room for one more, and in buckets."""

    def __init__(self, layer: Layer, seed: int):
        g = torch.Generator().manual_seed(seed)
        self.layer, self.generator = layer, g
        shape = (1, layer.kv_heads, layer.tokens + 1, layer.size)
        self.key, self.value = (torch.randn(shape, generator=g).to(layer.dtype) for _ in range(2))
        self.groups = balanced_groups(layer, g)
        self.stream = KeyBuckets(num_groups=layer.num_groups, window=layer.window, sinks=layer.sinks, match=layer.match)
        self.stream.prefill(self.key[:, :, :-1], self.value[:, :, :-1], self.groups)
        self.token = self.draw()

    def draw(self) -> Token:
        """A token to come."""
        layer, g = self.layer, self.generator

        def rows(heads: int) -> Tensor:
            return torch.randn(1, heads, 1, layer.size, generator=g).to(layer.dtype)

        groups = torch.rand(1, 1, layer.num_groups, generator=g).topk(layer.top_k, -1).indices
        return Token(rows(layer.q_heads), rows(layer.kv_heads), rows(layer.kv_heads), groups)

    def append(self) -> None:
        """The full cache's way to take in the token: in place, at no cost but the copy."""
        place = self.layer.tokens
        self.key[:, :, place : place + 1] = self.token.key
        self.value[:, :, place : place + 1] = self.token.value

    def keys_read(self) -> int:
        """Keys that the stream's last token sees."""
        row, spans = self.stream.rows[0], self.stream.pool.spans
        names = self.stream.matching(0, row.listed or [])
        return row.count + min(self.layer.sinks, row.first) + sum(spans[name].used for name in names)


def balanced_groups(layer: Layer, generator: torch.Generator) -> Tensor:
    """[1, T, k]: first groups equally many, in random order; the others random."""
    first = torch.arange(layer.tokens)[torch.randperm(layer.tokens, generator=generator)] % layer.num_groups
    taste = torch.rand(layer.tokens, layer.num_groups, generator=generator).scatter_(1, first[:, None], 2.0)
    return taste.topk(layer.top_k, -1).indices[None]


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """aten's kernel, which knows grouped heads."""
    return _flash(q, k, v, 0.0, False, scale=q.shape[-1] ** -0.5)[0]


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads that share keys as rows: keys are read once."""
    return flash(q.view(1, k.shape[1], -1, q.shape[-1]), k, v)


def split(parts: int) -> Attend:
    """Folded, and the keys in equal parts (what is left over in one more), so that no thread waits."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, count, size = k.shape[1:]
        each = count // parts
        rows = q.view(1, heads, -1, size)
        some_k, some_v = (x[0, :, : parts * each].unflatten(1, (parts, each)).transpose(0, 1) for x in (k, v))
        scale = size**-0.5
        out, lse = _flash(rows.expand(parts, -1, -1, -1), some_k, some_v, 0.0, False, scale=scale)
        if count > parts * each:
            rest, rest_lse = _flash(rows, k[:, :, parts * each :], v[:, :, parts * each :], 0.0, False, scale=scale)
            out, lse = torch.cat([out, rest]), torch.cat([lse, rest_lse])
        return (out * torch.softmax(lse, 0)[..., None]).sum(0)

    return attend


def matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two products and a softmax, folded."""
    rows = q.view(k.shape[1], -1, q.shape[-1]) * q.shape[-1] ** -0.5
    return torch.bmm(torch.softmax(torch.bmm(rows, k[0].transpose(1, 2)), -1), v[0])


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As a model calls it."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


FULL: dict[str, Attend] = {
    "sdpa": sdpa,
    "flash": flash,
    "flash, folded": folded,
    "flash, split 2": split(2),
    "flash, split 4": split(4),
    "flash, split 8": split(8),
    "matmul": matmul,
}


def attend_full(stack: list[Memory], attend: Attend, append: bool) -> list[Tensor]:
    outs = []
    for memory in stack:
        if append:
            memory.append()
        outs.append(attend(memory.token.query, memory.key, memory.value))
    return outs


def attend_copied(stack: list[Memory]) -> list[Tensor]:
    """As transformers' DynamicCache does: the cache is copied to make it longer, then attended by sdpa."""
    outs = []
    for memory in stack:
        key = torch.cat([memory.key[:, :, :-1], memory.token.key], 2)
        value = torch.cat([memory.value[:, :, :-1], memory.token.value], 2)
        outs.append(sdpa(memory.token.query, key, value))
    return outs


def attend_focus(stack: list[Memory], append: bool) -> list[Tensor]:
    outs = []
    for memory in stack:
        token, stream = memory.token, memory.stream
        if append:
            stream.append(token.key, token.value, token.groups)
        outs.append(attend_chunk(token.query, stream))
    return outs  # type: ignore[return-value]


def oracle(memory: Memory, dense: bool) -> Tensor:
    """[Hq, D]: the contract for the token after the prompt in float64, or full attention."""
    layer, token = memory.layer, memory.token
    place = torch.arange(layer.tokens + 1)
    groups = torch.cat([memory.groups, token.groups], 1)[0]
    seen = (layer.tokens - place <= layer.window) | (place < layer.sinks)
    seen |= matches(groups[-1:], groups, layer.match)[0]
    keys, values = (x[0].double()[:, seen | dense] for x in (memory.key, memory.value))
    rows = token.query.double().view(layer.kv_heads, -1, layer.size)
    weights = torch.softmax(rows @ keys.transpose(1, 2) * layer.size**-0.5, -1)
    return (weights @ values).view(-1, layer.size)


def check(stack: list[Memory]) -> Iterator[str]:
    """The gate: every way to attend, on the first and the last layer, before anything is timed. Appends one token."""
    for memory in (stack[0], stack[-1])[: len(stack)]:
        memory.append()
        ways = {name: (attend_full([memory], attend, False)[0], True) for name, attend in FULL.items()}
        ways["cat + sdpa"] = (attend_copied([memory])[0], True)
        ways["focus"] = (attend_focus([memory], append=True)[0], False)
        for name, (out, dense) in ways.items():
            yield name
            want = oracle(memory, dense)
            error = float((out.double().reshape(want.shape) - want).abs().max())
            allowed = 4 * torch.finfo(memory.layer.dtype).eps * float(memory.value.abs().max())
            if not error <= allowed:
                raise Red(f"{name} at {memory.layer.tokens} tokens: error {error:.2e}, allowed {allowed:.2e}")
