"""The contract once more, written from scratch for a whole model: dense masks, float64, no shared code."""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import torch

from focus_retrofit import attention


def positions_of(documents):
    """documents [B, T] -> place of each token among the real ones of its document, -1 at padding."""
    places = torch.full_like(documents, -1)
    for row, ids in enumerate(documents.tolist()):
        seen = {}
        for at, document in enumerate(ids):
            if document >= 0:
                places[row, at] = seen.get(document, 0)
                seen[document] = seen.get(document, 0) + 1
    return places


def dense_attention(layer, query, key, value, documents, scaling, softcap, sink_logits):
    """One layer: visible pairs by the rule (hard) or gated (soft), one joint softmax."""
    config, focus, router = layer.focus.config, layer.focus, layer.router
    hidden, _ = layer.take_call()
    scores = (hidden.float() @ router.projection @ router.centroids.T) / config.tau
    if config.balance == "potentials":
        scores = scores + router.potentials
    groups = scores.topk((config.layer_top_k or {}).get(layer.index, config.top_k), -1).indices
    places = positions_of(documents)
    distance = places[:, :, None] - places[:, None, :]
    alive = (documents[:, :, None] == documents[:, None, :]) & (documents >= 0)[:, None] & (distance >= 0)
    local, sink = distance <= config.window, (places < config.sinks)[:, None].expand_as(distance)
    early = (places < focus.dense_below)[:, :, None]
    if config.match == "probe":
        match = (groups[:, :, None, :] == groups[:, None, :, :1]).any(-1)
    else:
        match = (groups[:, :, None, :, None] == groups[:, None, :, None, :]).any(-1).any(-1)

    logits = scaling * torch.einsum("bhqd,bhkd->bhqk", query, key.repeat_interleave(query.shape[1] // key.shape[1], 1))
    if config.temperature is not None:
        where = (~local if config.temperature_scope == "distant" else torch.ones_like(local)) & ~early
        t = router.layer_temperature()
        if t is None:
            t = router.token_temperature(hidden)[:, None, :, None]
        else:
            t = torch.as_tensor(t, dtype=torch.float64).reshape(-1, 1, 1)  # of the layer, or of each head
        logits = torch.where(where[:, None], logits / t, logits)
    overlap = torch.einsum("bqk,bjk->bqj", scores.softmax(-1), scores.softmax(-1)).double()
    gated = (~(local | sink | early))[:, None]
    if focus.mode == "soft" and config.gate == "multiplicative":
        logits = torch.where(gated, logits * torch.sigmoid(config.gate_strength * overlap)[:, None], logits)
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if focus.mode == "soft":
        visible = alive
        if config.gate == "log":
            logits = torch.where(gated, logits + overlap.clamp_min(1e-12).log()[:, None], logits)
    else:
        visible = alive & (local | sink | match | early)
    logits = logits.masked_fill(~visible[:, None], float("-inf"))
    if sink_logits is not None:
        logits = torch.cat([logits, sink_logits.to(logits)[None, :, None, None].expand(*logits.shape[:3], 1)], -1)
    weights = logits.softmax(-1).nan_to_num()[..., : key.shape[2]]
    out = torch.einsum("bhqk,bhkd->bhqd", weights, value.repeat_interleave(query.shape[1] // value.shape[1], 1))
    return out.transpose(1, 2)


@contextmanager
def oracle(documents):
    """Inside, the model's Focus layers compute the contract densely, for inputs laid out as `documents` [B, T]."""

    def attend(layer, base, module, query, key, value, mask, scaling=None, softcap=None, s_aux=None, **kwargs):
        return dense_attention(layer, query, key, value, documents, scaling, softcap, s_aux), None

    with mock.patch.object(attention, "attend", attend):
        yield


def logits_of(model, ids, **kwargs):
    with torch.no_grad():
        return model(ids, use_cache=False, **kwargs).logits


def expected(model, ids, documents=None, **kwargs):
    """What the contract says the model's logits are."""
    with oracle(torch.zeros_like(ids) if documents is None else documents):
        return logits_of(model, ids, **kwargs)
