"""Hard routing: what is served. A whole sequence by `focus_attention`, a chunk after a past from its cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from focus_kernels import KeyBuckets, attend_chunk, focus_attention, gated_attention, which_backend

from .cache import FocusLayer
from .latent import expand_output, is_latent, latent_query, latent_rows
from .router import Routing
from .stats import Stats

if TYPE_CHECKING:
    from .controller import Focus


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
    shape["sequence_ids"] = focused["sequence_ids"] = layout.sequence_ids
    cool = cooled(query, routed.per_token)
    focused["padding_mask"] = layout.real
    out: Any
    if torch.is_grad_enabled() and routed.logits.requires_grad:
        soft = routed.logits.softmax(-1)
        explored = soft.detach().topk(config.explore or config.num_groups, -1).indices.to(query.device)
        out = gated_attention(cool, key, value, groups, soft, explored=explored, **focused)
    else:
        out = focus_attention(cool, key, value, groups, **focused)
    if not focus.dense_below:
        return out, chosen
    positions = layout.positions()
    early = (positions >= 0) & (positions < focus.dense_below)
    plain = {**options, "temperature": None}
    one_group = torch.zeros_like(groups[..., :1])
    dense: Any = focus_attention(query, key, value, one_group, num_groups=1, padding_mask=early, **shape, **plain)
    return torch.where(early[:, None, :, None], dense, out), chosen


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
    cache.commit(*(latent_rows(chunk) if latent else chunk), groups, layout.real, attended=False)
    if latent:
        query = latent_query(module, query)
    early = None  # [B, c]: queries that still see everything
    if min(lengths) < focus.dense_below:
        early = torch.tensor(lengths, device=query.device)[:, None] + layout.positions() < focus.dense_below
    out: Any = None
    if early is None or not bool(early.all()):
        out = attend_chunk(cooled(query, routed.per_token), cache.buckets, **options)
        if query.shape[2] == 1:
            note_reading(stats, cache.buckets, groups)
    if early is not None and bool(early.any()):
        everywhere = torch.arange(focus.config.num_groups, device=query.device).expand(*groups.shape[:2], -1)
        plain = {**options, "temperature": None}
        dense: Any = attend_chunk(query, cache.buckets, query_groups=everywhere, **plain)
        out = dense if out is None else torch.where(early[:, None, :, None], dense, out)
    return expand_output(module, out) if latent else out


def cooled(query: Tensor, per_token: Tensor | None) -> Tensor:
    """query [B, H, T, D] over each token's own temperature [B, T]."""
    return query if per_token is None else query / per_token[:, None, :, None].to(query.device, query.dtype)


def note_reading(stats: Stats, buckets: KeyBuckets, groups: Tensor) -> None:
    """How many keys a decoding step read, of how many there are."""
    for number, (row, looked) in enumerate(zip(buckets.rows, groups[:, -1].tolist(), strict=True)):
        far = sum(buckets.pool.spans[name].used for name in buckets.matching(number, looked))
        stats.note_decoding(row.count + min(buckets.sinks, row.first) + far, row.length)
