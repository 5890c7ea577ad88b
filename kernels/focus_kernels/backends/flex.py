"""torch's FlexAttention over the group-sorted tokens: one compiled pass under a block mask, a peer to measure against.

The real tokens of the whole batch form one list, sorted by document and groups. A token's `place` counts the real
tokens in reading order, document after document: the distance of two tokens of a document is that of their places.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..call import Call
from ..problem import Problem

try:
    from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
except ImportError as error:
    _missing: str | None = f"FlexAttention cannot be imported: {error} (it needs torch 2.9)"
else:
    _missing = None

name = "flex"
BLOCKS = {"cpu": 32, "cuda": 128}  # tokens per block: CPU's tiles are the blocks, CUDA's are up to 128 wide
WORD = 31  # groups per int32 of a token's bit mask
ROOM = 1 << 17  # tokens that captured tensors have room for: their shape is fixed, so a new length compiles nothing
VARIANTS = 256  # dynamo otherwise gives up after 8 of them: head counts and sizes, dtypes, scales, options
Mod = Callable[..., Tensor]


def unavailable() -> str | None:
    """Why this backend cannot run here at all."""
    return _missing or (None if torch.cuda.is_available() else _no_cpu_kernel())


def _no_cpu_kernel() -> str | None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"FlexAttention is compiled on first use and there is no C++ compiler {compiler!r} (CXX names another)"
    capability = torch.backends.cpu.get_cpu_capability()
    return None if "AVX" in capability else f"FlexAttention's CPU kernel needs AVX2, torch uses {capability} here"


def refuse(call: Call) -> str | None:
    """Why this backend cannot serve this call."""
    device, problem = call.query.device, call.problem
    if call.engine != "auto":
        return f"engine {call.engine!r} was asked for and FlexAttention has one pass of its own"
    if device.type not in BLOCKS:
        return f"the tensors are on {device}; FlexAttention is used on {' and '.join(BLOCKS)}"
    if call.query.dtype == torch.float64:
        return "query is torch.float64 and FlexAttention computes in float32"
    if device.type == "cuda":
        size = min(call.query.shape[3], call.value.shape[3])
        return f"head size {size} is below the 16 that FlexAttention's CUDA kernel needs" if size < 16 else None
    if call.needs_grad:
        inputs: dict[str, Tensor | None] = {"query": call.query, "key": call.key, "value": call.value}
        inputs |= {"temperature": problem.temperature, "sink_logits": problem.sink_logits}
        wanting = next(name for name, tensor in inputs.items() if tensor is not None and tensor.requires_grad)
        return f"{wanting} requires grad and FlexAttention has no backward on CPU"
    return _no_cpu_kernel()


def run(call: Call) -> tuple[Tensor, Tensor]:
    """out [B, Hq, T, Dv] and lse [B, Hq, T]; on CPU the lse takes a second, slower pass: unwanted, it stays -inf."""
    batch, heads, tokens, _ = call.query.shape
    out = call.query.new_zeros(heads, batch * tokens, call.value.shape[3])
    lse = torch.full((heads, batch * tokens), float("-inf"), device=out.device)
    if call.sequences:
        order = sort_tokens(call)
        real = order.index[: order.real]
        with torch.set_grad_enabled(call.needs_grad):
            part, part_lse = _attend_sorted(call, order, call.want_lse or call.problem.sink_logits is not None)
            out = out.index_copy(1, real, part[:, : order.real])
            if part_lse is not None:
                lse = lse.index_copy(1, real, part_lse[:, : order.real])
    out, lse = (x.unflatten(1, (batch, tokens)).transpose(0, 1).contiguous() for x in (out, lse))
    return out, lse


@dataclass(frozen=True)
class Order:
    """Tokens by document, groups and position. The last document is filling, up to whole blocks and at least two."""

    index: Tensor  # [N] row * T + column in the batch
    place: Tensor  # [N] number in reading order
    position: Tensor  # [N] within the document
    document: Tensor  # [N] increasing
    groups: Tensor  # [N, k]
    real: int  # tokens before the filling
    block: int  # tokens per block


def sort_tokens(call: Call) -> Order:
    """The tokens of a call such that those of equal document and equal groups stand together, in reading order."""
    device, block = call.query.device, BLOCKS[call.query.device.type]
    flat = torch.arange(call.groups.shape[0] * call.groups.shape[1], device=device)
    parts = [sequence.take(flat.view(call.groups.shape[:2]), 0) for sequence in call.sequences]
    real = sum(len(part) for part in parts)
    parts.append(flat.new_zeros(max(-(-real // block), 2) * block - real))
    index = torch.cat(parts)
    lengths = torch.tensor([len(part) for part in parts], device=device)
    document = torch.arange(len(parts), device=device).repeat_interleave(lengths)
    place = torch.arange(len(index), device=device)
    position = place - (lengths.cumsum(0) - lengths)[document]
    groups = call.groups.flatten(0, 1).long()[index]
    order = place
    for column in (*reversed(groups.unbind(1)), document):
        order = order[column[order].argsort(stable=True)]
    return Order(index[order], order, position[order], document[order], groups[order], real, block)


def block_tables(order: Order, problem: Problem) -> tuple[Tensor, Tensor]:
    """[n, n] by query and key block: may any pair be visible, and are all of them? Doubt is left to the token mask."""
    low, high = order.place.view(-1, order.block).aminmax(dim=1)
    first, last = order.document.view(-1, order.block)[:, 0], order.document.view(-1, order.block)[:, -1]
    sink = (order.position < problem.sinks).view(-1, order.block).any(1)
    asked = _members(order.groups, order, problem)  # [n, K]
    given = asked if problem.match == "share" else _members(order.groups[:, :1], order, problem)
    together = (first[:, None] <= last) & (first <= last[:, None]) & (low <= high[:, None])
    some = together & (_near(order, problem.window) | sink | (asked @ given.T > 0))
    one = (first[:, None] == last) & (first == last[:, None]) & (high <= low[:, None])
    all_match = (asked == order.block).float() @ (given == order.block).float().T > 0
    return some, one & (all_match | (high[:, None] - low <= problem.window))


def _members(groups: Tensor, order: Order, problem: Problem) -> Tensor:
    """[N, k] -> [n, K]: how many tokens of a block list a group."""
    listed = groups.reshape(len(groups) // order.block, -1)
    counts = torch.zeros(len(listed), problem.num_groups, device=groups.device)
    return counts.scatter_add_(1, listed, torch.ones_like(listed, dtype=counts.dtype))


def _near(order: Order, window: int) -> Tensor:
    """[n, n]: may a query of this block have a key of that one in its window? Both are laid on reading order."""
    count = len(order.place) // order.block
    owner = torch.arange(count, device=order.place.device).repeat_interleave(order.block)  # [N]
    start = (order.place - order.position.clamp(max=window)) // order.block
    stop = order.place // order.block
    held, edges = torch.zeros(2, count, count + 1, device=stop.device)  # by block and stretch of reading order
    held[owner, stop] = 1
    edges.index_put_((owner, start), edges.new_ones(()), accumulate=True)
    edges.index_put_((owner, stop + 1), -edges.new_ones(()), accumulate=True)
    return (edges.cumsum(1) > 0).float() @ held.T > 0


def _table(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """[n, n] -> how many blocks each row has, and which, in the form that BlockMask wants."""
    chosen = blocks.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return blocks.sum(1, dtype=torch.int32)[None, None], chosen.to(torch.int32)[None, None]


def _static(tensor: Tensor) -> Tensor:
    """A tensor to capture: inductor's CPU template miscompiles captured tensors of dynamic shape, and numbers."""
    torch._dynamo.mark_static(tensor)
    return tensor


def _hold(tensor: Tensor) -> Tensor:
    """[N, ...] -> int32 [ROOM, ...], to capture."""
    held = tensor.new_empty(max(ROOM, 1 << (len(tensor) - 1).bit_length()), *tensor.shape[1:], dtype=torch.int32)
    held[: len(tensor)] = tensor
    return _static(held)


def _words(groups: Tensor, num_groups: int) -> Tensor:
    """[N, k] -> [N, words]: a token's groups as bits."""
    return groups.new_zeros(len(groups), -(-num_groups // WORD)).scatter_add_(1, groups // WORD, 1 << groups % WORD)


def _mods(order: Order, problem: Problem, heads: int) -> tuple[Mod, Mod | None]:
    """Which pairs of sorted tokens are visible, and how their scores change."""
    place, position = _hold(order.place), _hold(order.position)
    asked = _hold(_words(order.groups, problem.num_groups))
    given = _hold(_words(order.groups if problem.match == "share" else order.groups[:, :1], problem.num_groups))
    limits = _static(torch.tensor([problem.window, problem.sinks], dtype=torch.int32, device=place.device))
    near = distant = cap = None
    if problem.temperature is not None:
        distant = _static(problem.temperature.float().reciprocal().expand(heads).clone())
        near = _static(distant.clone() if problem.temperature_scope == "all" else torch.ones_like(distant))
    if problem.softcap is not None:
        cap = _static(torch.tensor([problem.softcap], device=place.device))

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        distance = place[q] - place[kv]
        at = position[q] - distance  # the key's position, if it is in the query's document
        seen = (distance <= limits[0]) | (at < limits[1])
        for word in range(asked.shape[1]):
            seen = seen | ((asked[q, word] & given[kv, word]) != 0)
        return (distance >= 0) & (at >= 0) & seen

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        if near is not None and distant is not None:
            score = score * torch.where(place[q] - place[kv] > limits[0], distant[h], near[h])
        return score if cap is None else cap[0] * torch.tanh(score / cap[0])

    return mask_mod, None if near is None and cap is None else score_mod


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


def _attend_sorted(call: Call, order: Order, want_lse: bool) -> tuple[Tensor, Tensor | None]:
    """out [Hq, N, Dv] and lse [Hq, N] in sorted order."""
    problem, inputs = call.problem, (call.query, call.key, call.value)
    query, key, value = (x.transpose(0, 1).flatten(1, 2).index_select(1, order.index) for x in inputs)
    mask_mod, score_mod = _mods(order, problem, len(query))
    some, full = block_tables(order, problem)
    sizes = query.shape[1], query.shape[1]
    partly, fully = _table(some & ~full), _table(full)
    mask = BlockMask.from_kv_blocks(*partly, *fully, order.block, mask_mod, sizes, compute_q_blocks=call.needs_grad)
    aux = None if query.device.type == "cpu" else AuxRequest(lse=True)
    with torch._dynamo.config.patch(recompile_limit=VARIANTS):
        tensors = query[None], key[None], value[None]
        found = _compiled()(*tensors, score_mod, mask, problem.scale, enable_gqa=True, return_aux=aux)
    out, lse = (found[0], None) if aux is None else (found[0][0], found[1].lse[0])
    if lse is None and want_lse:
        lse = _logsumexp(query.float() * problem.scale, key.float(), some, mask_mod, score_mod)
    if lse is not None and problem.sink_logits is not None:
        logits = problem.sink_logits.to(lse.dtype)[:, None]
        out = (out * torch.sigmoid(lse - logits)[..., None]).to(out.dtype)
        lse = torch.logaddexp(lse, logits.expand_as(lse))
    return out, lse


def _logsumexp(query: Tensor, key: Tensor, blocks: Tensor, mask_mod: Mod, score_mod: Mod | None) -> Tensor:
    """[Hq, N]: what the CPU kernel keeps to itself, in plain torch over the same blocks; fp32, the query scaled."""
    size = query.shape[1] // len(blocks)
    heads, within = torch.arange(len(query))[:, None, None], torch.arange(size)
    parts = []
    for number, row in enumerate(blocks):
        rows, keys = number * size + within[:, None], (row.nonzero() * size + within).flatten()
        folded = query.narrow(1, number * size, size).reshape(len(key), -1, query.shape[2])  # [Hkv, rep * size, D]
        logits = (folded @ key.index_select(1, keys).transpose(1, 2)).view(len(query), size, len(keys))
        if score_mod is not None:
            logits = score_mod(logits, heads, heads, rows, keys)
        parts.append(logits.masked_fill_(~mask_mod(heads, heads, rows, keys), float("-inf")).logsumexp(-1))
    return torch.cat(parts, dim=1)
