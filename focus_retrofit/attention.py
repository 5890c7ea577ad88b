"""The attention function that transformers calls: route a layer's tokens, then attend softly, hard, or as the base."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from focus_kernels import FocusError

from .hard import attend_past, attend_token, attend_whole
from .latent import is_latent, latent_rows
from .layer import ATTRIBUTE, Layer
from .masks import Layout, base_mask, make_mask_function
from .parallel.tensor import head_group, of_heads_here, sum_gradients
from .router import Routing
from .soft import soft_attention

Output = tuple[Tensor, Tensor | None]


@dataclass
class Seen:
    """What a layer was given in a call, for `focus.watch`. A function that `watch` returns is given the layer's output
    [B, T, Hq, Dv], in the modes 'dense' and 'hard'. Groups or options that it changes are attended with."""

    index: int
    hidden: Tensor  # [B, T, d]
    query: Tensor  # [B, Hq, T, D]
    key: Tensor  # [B, Hkv, T, D]
    value: Tensor  # [B, Hkv, T, Dv]
    routed: Routing
    options: dict[str, Any]  # scale, softcap, sink_logits, temperature
    spread: Any = None  # the process group over which the heads are spread, if they are


def register(base: str) -> str:
    """Register Focus over a base implementation ('sdpa', 'eager', ...) with transformers; returns its name there."""
    name = "focus_" + base.replace("flash_attention_", "fa")  # "flash" in a name would be taken for that kernel

    def forward(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> Output:
        layer: Layer | None = getattr(module, ATTRIBUTE, None)
        if layer is not None and layer.router is None and layer.focus.parallel is not None:
            out = layer.focus.parallel.attend_unrouted(layer, module, query, key, value, **kwargs)
            return out.transpose(1, 2), None
        if layer is None or layer.local:
            return base_attention(base, module)(module, query, key, value, attention_mask, **kwargs)
        if layer.router is None or layer.handed_out(base, query.device):
            return attend_densely(base, module, query, key, value, attention_mask, **kwargs)
        how = attend_uncompiled if torch.compiler.is_compiling() else attend
        return how(layer, base, module, query, key, value, attention_mask, **kwargs)

    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, make_mask_function(base))
    return name


def base_attention(base: str, module: nn.Module) -> Callable[..., Output]:
    """The base implementation's function; 'eager' is each modeling file's own."""
    found: Callable[..., Output] | None = ALL_ATTENTION_FUNCTIONS.get(base)
    return found or sys.modules[type(module).__module__].eager_attention_forward


def attend_densely(
    base: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> Output:
    """As the base would, with the mask it would have been given; `mask` is ours (documents), or a finished 4D one."""
    if (mask is None and query.shape[2] > 1) or (mask is not None and mask.dim() == 2):  # a lone token needs none
        mask = base_mask(base, query, key.shape[2], mask, module.config)
    return base_attention(base, module)(module, query, key, value, mask, **kwargs)


def attend(
    layer: Layer,
    base: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> Output:
    """query [B, Hq, T, D], key/value [B, Hkv, T, *] of one chunk -> ([B, T, Hq, Dv], None)."""
    focus, router = layer.focus, layer.router
    hidden, cache = layer.take_call()
    assert router is not None
    check_call(layer, query, key, attention_mask, dropout, kwargs)
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    plain = attention_mask is None and softcap is None and s_aux is None
    if plain and query.shape[2] == 1 and cache is not None:
        served = attend_token(layer, cache, hidden, query, scale)
        if served is not None:
            return served.transpose(1, 2), None
    query, key, value = to_one_dtype(query, key, value)
    tokens = query.shape[2]
    documents = None if attention_mask is None else attention_mask[:, -tokens:].to(query.device)
    routed = router.route(hidden, Layout(query.shape[0], tokens, documents, query.device))
    spread = head_group(module) if torch.is_grad_enabled() or focus.watch is not None else None
    routed.logits = sum_gradients(routed.logits, spread)
    routed.per_token = sum_gradients(routed.per_token, spread)
    options: dict[str, Any] = {
        "scale": scale,
        "temperature": of_heads_here(sum_gradients(router.layer_temperature(), spread), query.shape[1], module),
        "softcap": softcap,
        "sink_logits": s_aux,
    }
    note = partial(layer.stats.note_call, routed, focus.dense_below)
    after, seen = None, Seen(layer.index, hidden, query, key, value, routed, options, spread)
    if focus.watch is not None:
        after = focus.watch(seen)
    if focus.rival is not None:
        return attend_otherwise(layer, seen, cache), None
    if focus.mode == "soft":
        note(f"soft ({focus.config.gate} gate)")
        out = soft_attention(query, key, value, routed, focus, dropout=dropout, **options)
        return out.transpose(1, 2), None
    options.update(temperature_scope=focus.config.temperature_scope, backend=focus.backend)
    if focus.parallel is not None:
        out = focus.parallel.attend(layer, module, query, key, value, routed, options).transpose(1, 2)
        note("hard (sequence parallel)")
        if after is not None:
            after(out)
        return out, None
    if cache is not None and cache.length:
        if focus.config.leaks:
            raise FocusError("balance='sinkhorn' looks at later tokens and cannot generate; use balance='potentials'")
        out = attend_past(module, cache, query, routed, focus, options, layer.stats)
        cache.release(tokens)
        return out.transpose(1, 2), None
    if cache is not None:
        chunk = cache.take_chunk(query.dtype)
        stored = latent_rows(chunk) if is_latent(module) else chunk
        cache.commit(*stored, routed.groups, routed.layout.real)
        cache.release(tokens)
    if tokens <= focus.dense_below or focus.mode == "dense":
        note(f"dense ({base})")
        kwargs.update(scaling=scaling, dropout=dropout, softcap=softcap, s_aux=s_aux)
        given = {name: value for name, value in kwargs.items() if value is not None}
        dense = attend_densely(base, module, query, key, value, attention_mask, **given)
        if after is not None:
            after(dense[0])
        return dense
    out, chosen = attend_whole(query, key, value, routed, focus, options)
    note(f"hard ({chosen})")
    out = out.transpose(1, 2)
    if after is not None:
        after(out)
    return out, None


# Planning reads group counts on the host, which a compiler cannot trace: it compiles the model around this function.
attend_uncompiled = torch.compiler.disable(attend)


def attend_otherwise(layer: Layer, seen: Seen, cache: Any) -> Tensor:
    """By the rule of a rival -> [B, T, Hq, Dv]."""
    focus = layer.focus
    if cache is not None:
        raise FocusError(f"{focus.rival.name} keeps no cache: pass use_cache=False")
    out, layer.stats.pairs = focus.rival(seen, len(focus.layer_indices))
    layer.stats.routing = focus.rival.name
    return out.transpose(1, 2)


def to_one_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under autocast rotated queries and keys may be fp32 beside half-precision values: cast as SDPA would."""
    if len({tensor.dtype for tensor in tensors}) == 1:
        return tensors
    kind = tensors[0].device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensors[-1].dtype
    return tuple(tensor.to(dtype) for tensor in tensors)


def check_call(
    layer: Layer, query: Tensor, key: Tensor, attention_mask: Tensor | None, dropout: float, others: dict[str, Any]
) -> None:
    """What Focus cannot honour is refused, never ignored."""
    where = f"layer {layer.index}: "
    if key.shape[2] != query.shape[2]:
        way = (
            "soft mode keeps no cache, pass use_cache=False" if layer.focus.mode == "soft" else "pass FocusCache(model)"
        )
        raise FocusError(f"{where}{query.shape[2]} queries meet {key.shape[2]} keys whose groups are not known: {way}")
    if attention_mask is not None and attention_mask.dim() != 2:
        raise FocusError(
            f"{where}a finished mask {list(attention_mask.shape)} cannot be routed: pass attention_mask [batch, "
            "tokens], or position_ids that restart with each packed document"
        )
    for name in ("position_bias", "head_mask", "sliding_window"):
        if others.get(name) is not None:
            raise FocusError(f"{where}{name} is not known to Focus attention; leave this layer out of `layers`")
    if others.get("is_causal") is False:
        raise FocusError(f"{where}is_causal=False: Focus attention is causal")
    if dropout and layer.focus.mode == "hard":
        raise FocusError(
            f"{where}attention dropout {dropout} is not known to FlashAttention's merged calls; set the model's "
            "attention dropout to 0, or call model.eval()"
        )
