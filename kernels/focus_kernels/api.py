"""The one operation: check everything, find a backend, run it."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import Tensor

from .backends import Backend, find
from .call import Call
from .choose import pick_engine
from .contain import contained
from .layout import sequences
from .problem import check_groups, check_problem, check_tensors


def focus_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Tensor,
    *,
    num_groups: int,
    window: int,
    sinks: int = 4,
    match: str = "probe",
    scale: float | None = None,
    temperature: float | Tensor | None = None,
    temperature_scope: str = "distant",
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    padding_mask: Tensor | None = None,
    sequence_ids: Tensor | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Causal attention in which a token sees its window, the sinks, and the distant tokens of its groups.

    query [B, Hq, T, D]; key [B, Hkv, T, D] and value [B, Hkv, T, Dv], never expanded; groups [B, T, k] integer ids,
    distinct per token, best first. Exact for one joint softmax over the visible pairs:

        visible(i, j) = j <= i and (i - j <= window or j < sinks or match(i, j))
        match "probe": the key's first group is among the query's k; "share": they have a group in common

    temperature divides the logits of distant pairs (or of all, by `temperature_scope`): a number, or one per query
    head. sink_logits [Hq] join the softmax without a value. padding_mask [B, T] is true at real tokens, wherever they
    stand; sequence_ids [B, T] keep packed documents apart; positions count a document's real tokens. backend is
    "auto", a name of `available_backends()`, or "name:engine" with the engine "sorted" or "chunked".

    Returns [B, Hq, T, Dv] (0 at padding) and, if asked, the logsumexp [B, Hq, T] (-inf at padding). Differentiable in
    query, key, value, temperature and sink_logits, through the logsumexp too.

    A key or value that is NaN or infinite makes the rows that see it NaN, in its head's query heads, and changes no bit
    of any other; what stands at padding never matters. The gradient is NaN at these rows of query and at these tokens
    of key and value; elsewhere it is that of a loss without these rows.
    """
    options: dict[str, Any] = {
        "backend": backend,
        "padding_mask": padding_mask,
        "sequence_ids": sequence_ids,
        "return_lse": return_lse,
        "num_groups": num_groups,
        "window": window,
        "sinks": sinks,
        "match": match,
        "scale": scale,
        "temperature": temperature,
        "temperature_scope": temperature_scope,
        "softcap": softcap,
        "sink_logits": sink_logits,
    }
    chosen, call = _prepare(query, key, value, groups, **options)
    out, lse = contained(chosen.run, call)
    return (out, lse) if return_lse else out


def which_backend(query: Tensor, key: Tensor, value: Tensor, groups: Tensor, **options: Any) -> str:
    """The backend that `focus_attention` takes for these arguments, with its engine where it has a choice of two."""
    chosen, call = prepare(query, key, value, groups, **options)
    return f"{chosen.name}:{pick_engine(call)}" if hasattr(chosen, "attend_stream") else chosen.name


def prepare(
    query: Tensor, key: Tensor, value: Tensor, groups: Tensor, needs: str | None = None, **options: Any
) -> tuple[Backend, Call]:
    """A checked call, and who would compute it; takes the arguments of `focus_attention`, and has its defaults."""
    given = signature(focus_attention).bind(query, key, value, groups, **options)
    given.apply_defaults()
    return _prepare(*given.args, needs=needs, **given.kwargs)


def _prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Tensor,
    *,
    needs: str | None = None,
    backend: str,
    padding_mask: Tensor | None,
    sequence_ids: Tensor | None,
    return_lse: bool,
    **problem: Any,
) -> tuple[Backend, Call]:
    """Check everything, and find who computes it; `needs` as in `find`."""
    check_tensors(query, key, value, groups)
    check_groups(groups, problem["num_groups"])
    checked = check_problem(
        q_heads=query.shape[1], head_size=query.shape[3], device=query.device, top_k=groups.shape[2], **problem
    )
    documents = sequences(query.shape[0], query.shape[2], padding_mask, sequence_ids, query.device)
    call = Call(query, key, value, groups, checked, documents, padding_mask, sequence_ids, return_lse)
    return find(backend, call, needs)
