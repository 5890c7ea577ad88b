"""Full attention in the ways a model could run it: its own, SDPA, FlashAttention, and the kernels' benchmark's.

Each is an attention implementation of transformers, used by the layers that Focus took. The fastest is the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from focus_kernels.backends.cpu import AtenTiles
from focus_kernels.bench.methods import BLOCK, causal_in_blocks
from focus_kernels.bench.token import FULL as TOKEN_WAYS

from ..attention import Output, attend_densely, base_attention
from ..discover import device_of
from ..layer import ATTRIBUTE
from ..masks import make_mask_function

PREFIX = "bench_"
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # [1, Hq, T, D], [1, Hkv, N, D] twice -> [1, Hq, T, D]


@contextmanager
def full_attention(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """The base model inside the `with`, its attention computed by an implementation of transformers."""
    focus: Any = model.focus
    with focus.disabled():
        model.set_attn_implementation(implementation)
        yield


def default_implementation(model: PreTrainedModel) -> str:
    """What the base model runs by itself."""
    focus: Any = model.focus
    with focus.disabled():
        return str(model.config._attn_implementation)


def whole_ways(model: PreTrainedModel) -> dict[str, str]:
    """Ways to attend a whole sequence worth trying, by name; the model's own comes first."""
    ways = ready_made(model)
    if device_of(model).type == "cpu":
        ways["balanced"] = _register("sdpa", "balanced", _balanced)
    return ways


def chunk_ways(model: PreTrainedModel) -> dict[str, str]:
    """Ways to attend chunk after chunk to a cache; transformers' own would write down a mask of all pairs."""
    if device_of(model).type == "cpu":
        return {"in chunks": _register("sdpa", "in chunks", _chunk)}
    return {"in chunks": "flash_attention_2"}


def token_ways(model: PreTrainedModel) -> dict[str, str]:
    """Ways to attend one token to a cache worth trying."""
    ways = ready_made(model)
    if device_of(model).type == "cpu":
        for name, attend in TOKEN_WAYS.items():
            if name != "sdpa":
                ways[name] = _register("sdpa", name, partial(_one_token, attend))
    return ways


def no_attention(model: PreTrainedModel) -> str:
    """The implementation that hands on each token's value: what is left of the time is not attention."""
    return _register(default_implementation(model), "no attention", _values)


def ready_made(model: PreTrainedModel) -> dict[str, str]:
    """transformers' own, which have gradients too."""
    names = [default_implementation(model), "sdpa"]
    if device_of(model).type == "cuda":
        names.append("flash_attention_2")
    return {name: name for name in names}


def _register(base: str, name: str, attend: Attend) -> str:
    """An implementation that attends like this where Focus would, and like `base` in the other layers."""

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        scaling: float | None = None,
        **others: Any,
    ) -> Output:
        layer = getattr(module, ATTRIBUTE, None)
        if layer is None or layer.local:
            return base_attention(base, module)(module, query, key, value, attention_mask, scaling=scaling, **others)
        if layer.router is None:
            return attend_densely(base, module, query, key, value, attention_mask, scaling=scaling, **others)
        if attend is not _values:
            unknown = [x for x in ("softcap", "s_aux", "position_bias") if others.get(x) is not None]
            if unknown or attention_mask is not None:
                raise ValueError(f"{name} knows no {', '.join(unknown) or 'attention mask'}")
            usual = query.shape[3] ** -0.5
            if scaling is not None and scaling != usual:
                query = query * (scaling / usual)
        return attend(query, key, value).transpose(1, 2).contiguous(), None

    registered = PREFIX + name.replace(", ", "_").replace(" ", "_") + "_" + base
    registered = registered.replace("flash", "fl")  # "flash" in a name would be taken for that kernel
    AttentionInterface.register(registered, forward)
    AttentionMaskInterface.register(registered, make_mask_function(base))  # none where there is no padding
    return registered


def _balanced(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.shape[2] != key.shape[2]:
        raise ValueError("balanced attends whole sequences")
    return torch.cat(causal_in_blocks(query, key, value, list(range(0, query.shape[2], BLOCK))), 2)


def _chunk(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The last tokens against all before them, which is a rectangle, and among themselves."""
    past, scale = key.shape[2] - query.shape[2], query.shape[3] ** -0.5
    near, near_lse = AtenTiles.forward(query, key[:, :, past:], value[:, :, past:], scale=scale, causal=True)
    if past:
        far, far_lse = AtenTiles.forward(query, key[:, :, :past], value[:, :, :past], scale=scale)
        near = torch.lerp(near, far, torch.sigmoid(far_lse - near_lse)[..., None].to(near.dtype))
    return near


def _one_token(attend: Attend, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.shape[2] != 1:
        raise ValueError("this way attends one token")
    return attend(query, key, value).reshape(*query.shape[:3], value.shape[3])


def _values(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    own = value[:, :, -query.shape[2] :]
    return own.repeat_interleave(query.shape[1] // own.shape[1], 1)
