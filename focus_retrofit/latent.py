"""Latent attention (MLA): the cache holds one compressed row per token, and decoding attends in that space.

A key is [W_k c, r] and a value W_v c for the latent c and the rotary part r of a token. Since q·W_k c = (W_k^T q)·c,
queries can be brought to the latent space instead of expanding every cached row: one key head of [c, r], value c.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def is_latent(module: nn.Module) -> bool:
    """Whether the module caches latents, as DeepSeek's attention does."""
    return hasattr(module, "expand_kv") and hasattr(module, "kv_b_proj")


def latent_rows(chunk: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """(latents [B, 1, T, r], rotary keys [B, 1, T, p]) as updated -> key [B, 1, T, r + p] and value [B, 1, T, r]."""
    latents, rotary = chunk
    return torch.cat([latents, rotary], -1), latents


def _expansion(module: Any) -> tuple[Tensor, Tensor]:
    """W_k [H, n, r] and W_v [H, v, r] of the module's expansion of latents."""
    projection = module.kv_b_proj
    weight = projection.weight
    if not weight.is_floating_point() or weight.dim() != 2 or weight.shape[0] != projection.out_features:
        rank = projection.in_features  # a quantised matrix: read it off the identity
        weight = projection(torch.eye(rank, dtype=torch.float32, device=weight.device)).T
    heads = weight.reshape(-1, module.qk_nope_head_dim + module.v_head_dim, weight.shape[1])
    return heads[:, : module.qk_nope_head_dim], heads[:, module.qk_nope_head_dim :]


def latent_query(module: Any, query: Tensor) -> Tensor:
    """query [B, H, T, n + p] -> [B, H, T, r + p], to meet `latent_rows`."""
    plain, rotary = query.split([module.qk_nope_head_dim, query.shape[-1] - module.qk_nope_head_dim], -1)
    return torch.cat([plain @ _expansion(module)[0].to(query.dtype), rotary], -1)


def expand_output(module: nn.Module, out: Tensor) -> Tensor:
    """Weighted latents [B, H, T, r] -> [B, H, T, v]."""
    return out @ _expansion(module)[1].to(out.dtype).mT
