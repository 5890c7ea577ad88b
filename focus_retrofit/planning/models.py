"""The sizes of a model that a plan starts from, by name or from its config."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from focus_kernels import FocusError


@dataclass(frozen=True)
class ModelFacts:
    """What counting takes of a decoder: its widths, and which of its parts have biases."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    head_dim: int = 0  # 0 is hidden / heads
    tied: bool = False  # whether the head is the embedding
    gated: bool = True  # MLP of three matrices, RMS norms; otherwise of two
    positions: int = 0  # rows of a learned position table
    norms: int = 2  # of the hidden size, per layer
    query_norm: int = 0  # numbers in the norms of queries and keys, per layer
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False  # LayerNorm rather than RMSNorm

    @property
    def size(self) -> int:
        """Of a head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        return self.heads * self.size

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.size

    @property
    def layer_matrices(self) -> int:
        """Numbers in a layer's linear maps: what is multiplied with, and what 4-bit loading shrinks."""
        attention = 2 * self.hidden * (self.query_width + self.key_width)
        return attention + (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def layer_parameters(self) -> int:
        biases = self.qkv_bias * (self.query_width + 2 * self.key_width) + self.out_bias * self.hidden
        biases += self.mlp_bias * ((2 if self.gated else 1) * self.intermediate + self.hidden)
        return self.layer_matrices + biases + self.norms * self._norm + self.query_norm

    @property
    def _norm(self) -> int:
        return self.hidden * (2 if self.norm_bias else 1)

    @property
    def embedding(self) -> int:
        """Numbers in the table of tokens, and in the head."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        outside = self.embedding * (1 if self.tied else 2) + self.positions * self.hidden + self._norm
        return self.layers * self.layer_parameters + outside

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "head_dim": self.size, "parameters": self.parameters}


MODELS = {
    facts.name: facts
    for facts in (
        ModelFacts("smollm2-135m", 576, 30, 9, 3, 1536, 49152, tied=True),
        ModelFacts("llama-2-7b", 4096, 32, 32, 32, 11008, 32000),
        ModelFacts("mistral-7b", 4096, 32, 32, 8, 14336, 32000),
        ModelFacts("qwen2.5-7b", 3584, 28, 28, 4, 18944, 152064, qkv_bias=True),
        ModelFacts("llama-3.1-8b", 4096, 32, 32, 8, 14336, 128256),
        ModelFacts("llama-2-13b", 5120, 40, 40, 40, 13824, 32000),
        ModelFacts("llama-2-70b", 8192, 80, 64, 8, 28672, 32000),
        ModelFacts("llama-3.1-70b", 8192, 80, 64, 8, 28672, 128256),
    )
}
BIASED = {"gated": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True, "norm_bias": True}
MODELS["gpt2"] = ModelFacts("gpt2", 768, 12, 12, 12, 3072, 50257, tied=True, positions=1024, **BIASED)

# what a family has that its config does not say
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {"norms": 4},
    "gemma3_text": {"norms": 4},
    "gpt2": BIASED,
    "gpt_neox": BIASED,
    "llama": {},
    "mistral": {},
    "olmo2": {},
    "phi3": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {},
}


SHORT = {"7b": "llama-2-7b", "8b": "llama-3.1-8b", "13b": "llama-2-13b", "70b": "llama-2-70b"}


def find_model(name: str | os.PathLike[str]) -> ModelFacts:
    """Sizes of a model: one of MODELS, a size such as 7b, or whatever config a directory or a name on the hub has."""
    known = SHORT.get(str(name).lower(), str(name).lower())
    if known in MODELS:
        return MODELS[known]
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise FocusError(
            f"no config of a model {str(name)!r}: {reason} (give a directory, a name on the hub, or one of "
            f"{', '.join(MODELS)})"
        ) from None
    return from_config(config, str(name))


def from_config(config: Any, name: str) -> ModelFacts:
    """Sizes from a transformers config."""
    config = config.get_text_config()
    kind = config.model_type
    if kind not in FAMILIES:
        raise FocusError(
            f"{name} is of type {kind!r}, whose sizes the plan cannot count; it can count {', '.join(FAMILIES)}. "
            "Describe the model by ModelFacts(...) of focus_retrofit.planning, or name one of similar size"
        )
    heads, hidden = config.num_attention_heads, config.hidden_size
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or hidden // heads
    own = dict(FAMILIES[kind])
    if getattr(config, "attention_bias", None) is not None:
        own["qkv_bias"] = own["out_bias"] = config.attention_bias
    if getattr(config, "mlp_bias", None) is not None:
        own["mlp_bias"] = config.mlp_bias
    if kind in ("qwen3", "gemma3_text"):
        own["query_norm"] = 2 * size
    if kind == "olmo2":
        own["query_norm"] = (heads + kv_heads) * size
    return ModelFacts(
        name,
        hidden=hidden,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        intermediate=(config.n_inner or 4 * hidden) if kind == "gpt2" else config.intermediate_size,
        vocab=config.vocab_size,
        head_dim=size,
        tied=bool(config.tie_word_embeddings),
        positions=config.max_position_embeddings if kind == "gpt2" else 0,
        **own,
    )
