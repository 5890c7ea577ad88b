"""The one list of model families: real model classes with tiny random configs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCABULARY = 96
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


@dataclass(frozen=True)
class Family:
    """`name`Config and `name`ForCausalLM (or LMHeadModel) of transformers, with what makes the family special."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    head: str = "ForCausalLM"
    config: str = "Config"
    full_layers: tuple[int, ...] = (0, 1, 2)
    mixture: bool = False  # of experts
    rounding: float = 1e-12  # of the base's own attention in float64: eager ones take a softmax in float32

    def __str__(self) -> str:
        return self.name

    def make(self, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any) -> PreTrainedModel:
        """A fresh model in eval mode."""
        torch.manual_seed(seed)
        make_config: Callable[..., Any] = getattr(transformers, self.name + self.config)
        model_class = getattr(transformers, f"{self.name}{self.head}")
        config = make_config(**{**SIZES, **self.options, **options})
        model = model_class._from_config(config, dtype=dtype).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(3.0)  # sharp attention: a pair left out must show
        return model


GQA = {"num_key_value_heads": 2}
INTERLEAVED = ["sliding_attention", "full_attention", "full_attention"]
FAMILIES = [
    Family("GPT2", {"n_inner": 48, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}, "LMHeadModel"),
    Family("Llama", GQA),
    Family("Mistral", {**GQA, "sliding_window": None}),
    Family("Qwen2", GQA),
    Family("Olmo2"),
    Family(
        "Gemma2",
        {**GQA, "head_dim": 8, "sliding_window": 16, "layer_types": INTERLEAVED, "attn_logit_softcapping": 5.0},
        full_layers=(1, 2),
        rounding=1e-5,
    ),
    Family("Qwen3", {**GQA, "head_dim": 16}),
    Family(
        "Gemma3",
        {**GQA, "head_dim": 8, "sliding_window": 16, "layer_types": INTERLEAVED},
        config="TextConfig",
        full_layers=(1, 2),
    ),
    Family("Phi3", {**GQA, "sliding_window": None}),
    Family("GPTNeoX", {"hidden_dropout": 0.0, "attention_dropout": 0.0}),
    Family("GPTBigCode", {"multi_query": True, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}),
    Family(
        "DeepseekV3",
        {
            "moe_intermediate_size": 16,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 12,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "experts_implementation": "eager",
        },
        mixture=True,
        rounding=1e-5,
    ),
    Family(
        "GptOss",
        {
            **GQA,
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 16,
            "layer_types": INTERLEAVED,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "experts_implementation": "eager",
        },
        full_layers=(1, 2),
        mixture=True,
        rounding=1e-5,
    ),
    Family(
        "Mixtral",
        {
            **GQA,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": None,
            "experts_implementation": "eager",
        },
        mixture=True,
    ),
]
BY_NAME = {family.name: family for family in FAMILIES}
