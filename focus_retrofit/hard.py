"""Hard routing: what is served. A whole sequence by `focus_attention`, a chunk after a past from its cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from focus_kernels import KeyBuckets, attend_chunk, focus_attention, gated_attention, which_backend
from focus_kernels.decode import attend_next

from .cache import FocusLayer
from .latent import expand_output, is_latent, latent_query, latent_rows
from .router import Routing
from .stats import Stats
from .token_router import TokenRouter

if TYPE_CHECKING:
    from .controller import Focus
    from .layer import Layer


def attend_whole(
    query: Tensor, key: Tensor, value: Tensor, routed: Routing, focus: Focus, options: dict[str, Any]
) -> tuple[Tensor, str]:
    """query [B, Hq, T, D], key/value [B, Hkv, T, *] of a whole sequence -> [B, Hq, T, Dv], and what computed it.

    Where the router learns, its soft assignments get a gradient too.
    """
    config, layout, groups = focus.config, routed.layout, routed.groups
    shape: dict[str, Any] = {"window": config.window, "sinks": config.sinks}
    focused = {"num_groups": config.num_groups, "match": config.match, **shape, **options}
    chosen = which_backend(query[:, :, :1], key[:, :, :1], value[:, :, :1], groups[:, :1], **focused)
    cool = cooled(query, routed.per_token)
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value, routed.logits))
    early = None
    if focus.dense_below:
        positions = layout.positions()
        early = (positions >= 0) & (positions < focus.dense_below)
    out: Any
    streams = ":" in chosen  # only backends with a streaming form name their engine
    if early is not None and streams and layout.sequence_ids is None and not learns:
        out = attend_late(cool, key, value, groups, early, layout.real, focus, options)
    else:
        focused.update(sequence_ids=layout.sequence_ids, padding_mask=layout.real)
        if torch.is_grad_enabled() and routed.logits.requires_grad:
            soft = routed.logits.softmax(-1)
            explore = max(config.explore or config.num_groups, groups.shape[2])
            explored = soft.detach().topk(explore, -1).indices.to(query.device)
            out = gated_attention(cool, key, value, groups, soft, explored=explored, **focused)
        else:
            out = focus_attention(cool, key, value, groups, **focused)
    if early is None:
        return out, chosen
    span = int(early.any(0).nonzero()[-1]) + 1  # no early token is beyond it
    plain = {**options, "temperature": None, "num_groups": 1, "sinks": config.sinks}
    q, k, v = (x[:, :, :span] for x in (query, key, value))
    ids = None if layout.sequence_ids is None else layout.sequence_ids[:, :span]
    some, one_group = early[:, :span], torch.zeros_like(groups[:, :span, :1])
    mask = None if bool(some.all()) else some
    near: Any = max(focus.dense_below, config.window)  # in a window that holds them all
    dense: Any = focus_attention(q, k, v, one_group, window=near, padding_mask=mask, sequence_ids=ids, **plain)
    return torch.cat([torch.where(some[:, None, :, None], dense, out[:, :, :span]), out[:, :, span:]], 2), chosen


def attend_late(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Tensor,
    early: Tensor,
    real: Tensor | None,
    focus: Focus,
    options: dict[str, Any],
) -> Tensor:
    """The queries of a whole sequence that are not `early` [B, T] -> [B, Hq, T, Dv], 0 elsewhere: early tokens are keys
    here, their own attention is dense."""
    config = focus.config
    shape = {"num_groups": config.num_groups, "window": config.window, "sinks": config.sinks, "match": config.match}
    buckets = KeyBuckets(**shape)  # type: ignore[arg-type]
    late = ~early if real is None else real & ~early
    buckets.prefill(key, value, groups, early)
    buckets.append(key, value, groups, late)
    out: Any = attend_chunk(query, buckets, **options)
    return out


def attend_past(
    module: nn.Module,
    cache: FocusLayer,
    query: Tensor,
    routed: Routing,
    focus: Focus,
    options: dict[str, Any],
    stats: Stats,
) -> Tensor:
    """The queries [B, Hq, c, D] of a chunk against the cache, into which it goes first -> [B, Hq, c, Dv]."""
    chunk, latent = cache.take_chunk(query.dtype), is_latent(module)
    layout, groups, lengths = routed.layout, routed.groups, cache.buckets.lengths
    stored = latent_rows(chunk) if latent else chunk
    cache.note_columns(groups.shape[:2], layout.real)
    if latent:
        query = latent_query(module, query)
    parts = [(layout.real, False)]  # (which of the tokens, densely): early ones see everything
    if min(lengths) < focus.dense_below:
        early = torch.tensor(lengths, device=query.device)[:, None] + layout.positions() < focus.dense_below
        if bool(early.all()):
            parts = [(layout.real, True)]
        elif bool(early.any()):
            real = torch.ones_like(early) if layout.real is None else layout.real
            parts = [(real & early, True), (real & ~early, False)]
    found = []
    for tokens, densely in parts:
        cache.buckets.append(*stored, groups, tokens)
        if densely:
            out: Any = attend_chunk(query, cache.buckets, dense=True, **{**options, "temperature": None})
        else:
            out = attend_chunk(cooled(query, routed.per_token), cache.buckets, **options)
            if query.shape[2] == 1:
                note_reading(stats, cache.buckets, groups)
        found.append(out)
    out = found[0] if len(found) == 1 else found[0] + found[1]  # 0 at what is not theirs
    return expand_output(module, out) if latent else out


def attend_token(layer: Layer, cache: FocusLayer, hidden: Tensor, query: Tensor, scale: float) -> Tensor | None:
    """What `attend_past` does with a token per row [B, Hq, 1, D], none of them padding, in the fewest calls: at short
    contexts these cost more than what they compute. None, and nothing is done, where it is not for this."""
    focus, router, buckets = layer.focus, layer.router, cache.buckets
    assert router is not None
    if not focus.only_serves() or focus.config.leaks or focus.config.temperature == "input" or layer.latent:
        return None
    if cache.chunk is None or cache.length < focus.dense_below or cache.columns is not None or cache.offloaded:
        return None
    if not query.is_cpu or not hidden.is_cpu:
        return None
    tokens = cache.tokens = cache.tokens or TokenRouter(router)
    if tokens.count != router.top_k:
        return None  # the general way says what is wrong
    temperature = router.layer_temperature()
    if isinstance(temperature, Tensor):
        if len(temperature) != query.shape[1]:
            return None  # heads are spread over processes
    elif temperature == 1:
        temperature = None
    out = attend_next(
        query,
        buckets,
        *cache.chunk,
        tokens.groups(hidden),
        scale=scale,
        temperature=temperature,
        temperature_scope=focus.config.temperature_scope,
    )
    if out is None:
        return None
    cache.chunk, cache.length = None, cache.length + 1
    for row in buckets.rows:
        layer.stats.note_decoding(row.read, row.length)
    return out


def cooled(query: Tensor, per_token: Tensor | None) -> Tensor:
    """query [B, H, T, D] over each token's own temperature [B, T]."""
    return query if per_token is None else query / per_token[:, None, :, None].to(query.device, query.dtype)


def note_reading(stats: Stats, buckets: KeyBuckets, groups: Tensor) -> None:
    """How many keys a decoding step read, of how many there are."""
    for number, row in enumerate(buckets.rows):
        looked = row.listed or groups[number, -1].tolist()
        far = sum(buckets.pool.spans[name].used for name in buckets.matching(number, looked))
        stats.note_decoding(row.count + min(buckets.sinks, row.first) + far, row.length)
