"""Exact attention of a slice of tokens whose keys are spread over ranks: window, sinks, distant matches by group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_kernels import attend_lists
from focus_kernels.lists import tile_ops
from focus_kernels.merge import add_sink_logits_, merge_
from focus_kernels.near import attend_near, with_factor
from focus_kernels.problem import Problem

from .exchange import Fetch, Link, Route
from .slices import Slices
from .stretches import cut_stretches


@dataclass(frozen=True)
class SliceCall:
    """This rank's tokens: query [B, Hq, n, D], key [B, Hkv, n, D], value [B, Hkv, n, Dv], groups [B, n, k]; no groups
    where only the window is seen. Queries before position `everywhere` see all keys, at no temperature."""

    query: Tensor
    key: Tensor
    value: Tensor
    groups: Tensor | None
    problem: Problem
    everywhere: int = 0
    backend: str = "auto"


def attend_slice(call: SliceCall, slices: Slices, link: Link) -> Tensor:
    """[B, Hq, n, Dv]: what attention over all slices gives this rank's queries. Every rank must call it."""
    problem, device = call.problem, call.query.device
    far = _far_queries(call, slices)
    pairs = torch.cat([_tokens(call.key), _tokens(call.value)], -1)  # [B * n, Hkv, D + Dv]
    halo = fetch_before(pairs, problem.window, slices, link)
    sinks = stretch = None
    if call.groups is not None and slices.tokens > problem.window + 1:
        if problem.sinks:
            needed = slices.numbers(range(problem.sinks))
            sinks = Route([needed] * slices.ranks, slices, device).fetch(link, "sinks", pairs)
        everyone = gather_groups(call.groups, slices, link)
        stretches = cut_stretches(everyone, problem, slices.ranks, call.everywhere)
        stretch = stretches[slices.rank]
        routes = [Route(need, slices, device) for need in ([s.rows for s in stretches], [s.keys for s in stretches])]
        queries = routes[0].fetch(link, "queries", _tokens(far))
        keys = routes[1].fetch(link, "keys", pairs)
    out, lse = _near(call, far, halo, sinks, slices)  # while queries and keys are under way
    if stretch is not None:
        some = queries.wait().transpose(0, 1)  # [Hq, M, D]
        key, value = _split(keys.wait(), call)
        lists = [
            type(one)(one.keys.to(device), one.rows.to(device), one.reach.to(device), one.below)
            for one in stretch.lists
        ]
        more, more_lse = attend_lists(some, key, value, lists, problem, call.backend)
        made = torch.cat([more.to(some.dtype), _as(more_lse[..., None], some.dtype)], -1).transpose(0, 1)
        for places, part in routes[0].give_back(link, "outputs", made):
            if places.numel():
                _fold(out, lse, places, part, call.value.shape[-1])
    if problem.sink_logits is not None:
        add_sink_logits_(out, lse, problem.sink_logits)
    rows = out.transpose(0, 1).unflatten(0, (slices.batch, slices.held))  # [B, n, Hq, Dv]
    return rows.transpose(1, 2).to(call.query.dtype)


def fetch_before(pairs: Tensor, window: int, slices: Slices, link: Link) -> Fetch:
    """The keys and values of the last `window` tokens before each slice; they may be of several ranks."""
    needed = [slices.numbers(range(max(start - window, 0), start)) for start in slices.starts[:-1]]
    return Route(needed, slices, pairs.device).fetch(link, "halo", pairs)


def gather_groups(groups: Tensor, slices: Slices, link: Link) -> Tensor:
    """groups [B, n, k] of a slice -> those of all tokens, [B, T, k], on the CPU."""
    mine = groups.to(torch.int16).flatten(0, 1)
    everything = slices.numbers(range(slices.tokens))
    route = Route([everything] * slices.ranks, slices, mine.device)
    return route.fetch(link, "groups", mine).wait().long().cpu().unflatten(0, (slices.batch, slices.tokens))


def _far_queries(call: SliceCall, slices: Slices) -> Tensor:
    """The queries for distant keys, which a scale with the temperature will meet: that of early ones is taken back."""
    temperature, early = call.problem.temperature, min(call.everywhere - slices.start, slices.held)
    if temperature is None or early <= 0:
        return call.query
    back = torch.ones(call.query.shape[1], slices.held, dtype=torch.float64, device=call.query.device)
    back[:, :early] = temperature.detach().double().reshape(-1, 1)
    return (call.query * back[..., None]).to(call.query.dtype)


def _near(call: SliceCall, far: Tensor, halo: Fetch, sinks: Fetch | None, slices: Slices) -> tuple[Tensor, Tensor]:
    """Window and sinks -> out [Hq, B * n, Dv] and lse [Hq, B * n]."""
    problem, batch = call.problem, slices.batch
    before_key, before_value = (x.unflatten(1, (batch, -1)) for x in _split(halo.wait(), call))
    first = None if sinks is None else [x.unflatten(1, (batch, -1)) for x in _split(sinks.wait(), call)]
    near = far if problem.temperature_scope == "all" else call.query
    ops = tile_ops(call.backend, call.query.device, problem.softcap)
    size = max(call.query.shape[-1], call.value.shape[-1])  # the primitive wants one
    found = []
    for row in range(batch):
        q, f = (with_factor(_pad(x[row], size), problem, distant) for x, distant in ((near, False), (far, True)))
        key = _pad(torch.cat([before_key[:, row], call.key[row]], 1), size)
        value = _pad(torch.cat([before_value[:, row], call.value[row]], 1), size)
        seen = None if first is None else (_pad(first[0][:, row], size), _pad(first[1][:, row], size))
        found.append(attend_near(ops, q, f, key, value, seen, slices.start, problem))
    out = torch.cat([out[..., : call.value.shape[-1]].transpose(0, 1) for out, _ in found]).transpose(0, 1)
    return out, torch.cat([lse for _, lse in found], 1)


def _fold(out: Tensor, lse: Tensor, places: Tensor, part: Tensor, size: int) -> None:
    """Merge what a rank made of some rows, part [m, Hq, Dv + lse], into out [Hq, *, Dv] and lse [Hq, *]."""
    part = part.transpose(0, 1)
    more, more_lse = part[..., :size].to(out.dtype), _back(part[..., size:], lse.dtype)
    now, now_lse = out[:, places], lse[:, places]
    merge_(now, now_lse, more, more_lse)
    out[:, places], lse[:, places] = now, now_lse


def _tokens(x: Tensor) -> Tensor:
    """[B, H, n, D] -> [B * n, H, D]."""
    return x.transpose(1, 2).flatten(0, 1)


def _split(pairs: Tensor, call: SliceCall) -> tuple[Tensor, Tensor]:
    """[N, Hkv, D + Dv] -> key [Hkv, N, D] and value [Hkv, N, Dv]."""
    key, value = pairs.transpose(0, 1).split([call.key.shape[-1], call.value.shape[-1]], -1)
    return key, value


def _pad(x: Tensor, size: int) -> Tensor:
    x = x if x.shape[-1] == size else F.pad(x, (0, size - x.shape[-1]))
    return x if x.stride(-1) == 1 else x.contiguous()


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers [..., 1] laid out, bit by bit, as some of another dtype: they ride along with the outputs."""
    return x.contiguous().view(dtype)


def _back(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What `_as` laid out, [...]."""
    return x.contiguous().view(dtype)[..., 0]
