"""Attending a chunk of queries to a stream's keys."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from . import contain, decode
from .backends import find
from .call import Call
from .errors import FocusError
from .merge import add_sink_logits_
from .problem import check_groups, check_problem
from .stream import KeyBuckets


def attend_chunk(
    query: Tensor,
    buckets: KeyBuckets,
    *,
    scale: float | None = None,
    temperature: float | Tensor | None = None,
    temperature_scope: str = "distant",
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    query_groups: Tensor | None = None,
    dense: bool = False,
    backend: str = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The queries [B, Hq, c, D] of the chunk last appended, against all keys so far; options as in `focus_attention`.

    query_groups [B, c, k'] are the groups to look into, instead of those appended with the chunk. dense: a query sees
    every key before it, none of them as a distant one; fast for streams no longer than they `hold`. Returns
    [B, Hq, c, Dv] (0 at padding) and, if asked, the logsumexp [B, Hq, c]. Appending and attending chunk after chunk
    gives what `focus_attention` gives for the whole sequence, whatever the chunk sizes. A query that sees a key or
    value that was NaN or infinite gives NaN; no other notices.
    """
    if not buckets.rows:
        raise FocusError("the stream is empty: append a chunk of keys before attending to it")
    if buckets.chunk is None:
        raise FocusError("no chunk is there to be attended (prefill, crop): append one before attending")
    wanted = (len(buckets.rows), buckets.chunk, buckets.key_size)
    if query.dim() != 4 or (query.shape[0], *query.shape[2:]) != wanted:
        fits = "[{}, heads, {}, {}]".format(*wanted)
        raise FocusError(f"query {list(query.shape)} does not fit the last chunk: it must be {fits}")
    if query.requires_grad and torch.is_grad_enabled():
        raise FocusError("a stream has no gradient and query requires one: use focus_attention, or torch.no_grad()")
    keys = buckets.recent  # [2, B, Hkv, room, D]
    if query.dtype != keys.dtype or query.device != keys.device or query.shape[1] % keys.shape[2]:
        raise FocusError(
            f"query has {query.shape[1]} heads, {query.dtype} on {query.device}; the stream's keys have "
            f"{keys.shape[2]} heads, {keys.dtype} on {keys.device}"
        )
    held, window = buckets.groups.shape[2], buckets.window
    if dense:
        window = max(window, *buckets.lengths)
        if any(row.first for row in buckets.rows):  # in buckets already: all of them are read
            everything = torch.arange(buckets.num_groups, device=query.device)
            query_groups = everything.expand(query.shape[0], query.shape[2], -1)
            window, temperature = buckets.window, temperature if temperature_scope == "all" else None
    if query_groups is not None:
        if query_groups.dim() != 3 or query_groups.shape[:2] != (query.shape[0], query.shape[2]):
            fits = f"[{query.shape[0]}, {query.shape[2]}, k]"
            raise FocusError(f"query_groups must be {fits}, got shape {list(query_groups.shape)}")
        check_groups(query_groups, buckets.num_groups)
    # where keys have one group the rules are one; where they have a set, it is what counts
    probing = buckets.match == "probe" or held == 1
    problem = check_problem(
        q_heads=query.shape[1],
        head_size=query.shape[3],
        device=query.device,
        top_k=held if query_groups is None or not probing else query_groups.shape[2],
        num_groups=buckets.num_groups,
        window=window,
        sinks=buckets.sinks,
        match="probe" if probing else "share",
        scale=scale,
        temperature=temperature,
        temperature_scope=temperature_scope,
        softcap=softcap,
        sink_logits=sink_logits,
    )
    query = query.detach()
    if query.shape[3] != keys.shape[4]:
        query = F.pad(query, (0, keys.shape[4] - query.shape[3]))
    if decode.serves(buckets, problem, backend):
        want_lse = return_lse or sink_logits is not None
        out, lse = decode.attend_tokens(query, buckets, problem, query_groups, want_lse)
    else:
        buckets.straighten()
        call = Call(query, buckets.recent_key, buckets.recent_value, buckets.groups, problem, [], None, None)
        out, lse = find(backend, call, needs="attend_stream")[0].attend_stream(query, buckets, problem, query_groups)
    if sink_logits is not None:
        add_sink_logits_(out, lse, sink_logits)
    if buckets.broken:
        contain.spoil_(out, lse, buckets, problem, query_groups)
    if buckets.value_size != out.shape[3]:
        out = out[..., : buckets.value_size]
    out = out.to(query.dtype)
    return (out, lse) if return_lse else out
