"""Bytes on each GPU while a long prompt is read and text is written after it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..config import FocusConfig
from .layouts import Layout
from .models import ModelFacts
from .training import CONTEXT, FRAGMENTS, NF4

NUMBER = {"fp64": 8.0, "fp32": 4.0, "bf16": 2.0, "fp8": 1.0}  # bytes of a cached number
WEIGHT = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "nf4": NF4}  # of one in the layers' matrices
SPARE = 1 / 16  # of a bucket's length, kept free behind it
GROUP = 2  # bytes: a token's groups are kept as int16


@dataclass(frozen=True)
class Holding:
    """Bytes of the fullest GPU."""

    weights: float
    cache: float
    activations: float  # of the tokens that go through a layer at once
    workspace: float  # what Focus gathers, what comes from other GPUs, CUDA, and what is lost between allocations

    @property
    def total(self) -> float:
        return sum(asdict(self).values())

    def to_dict(self) -> dict[str, float]:
        return {**asdict(self), "total": self.total}


def weight_bytes(model: ModelFacts, kind: str, tensor: int = 1) -> float:
    """Matrices of the layers as `kind`, all else at half precision at least, shared out among `tensor` GPUs."""
    small = model.layers * model.layer_matrices
    return (WEIGHT[kind] * small + max(WEIGHT[kind], 2.0) * (model.parameters - small)) / tensor


def cache_bytes(
    model: ModelFacts, tokens: int, kind: str, focus: FocusConfig | None = None, layout: Layout | None = None
) -> float:
    """Keys and values of all layers; with Focus a sixteenth to spare, and the groups of all tokens."""
    layout = layout or Layout()
    held = layout.tokens(tokens)
    plain = 2.0 * model.layers * layout.kv_heads(model) * model.size * held * NUMBER[kind]
    if focus is None:
        return plain
    return plain * (1 + SPARE) + model.layers * held * focus.top_k * GROUP


def holding(
    model: ModelFacts,
    tokens: int,
    chunk: int,
    layout: Layout,
    focus: FocusConfig | None,
    weights: str,
    cache: str,
) -> Holding:
    """While a prompt is read: in chunks, or, sequence parallel, all of a GPU's tokens at once."""
    queries, keys = layout.heads(model) * model.size, layout.kv_heads(model) * model.size
    own = layout.tokens(tokens)
    at_once = own if layout.sequence > 1 else min(chunk, own)
    mlp = (3 if model.gated else 2) * model.intermediate / layout.tensor
    activations = 2.0 * at_once * (3 * model.hidden + max(2 * queries + 2 * keys, mlp))  # attention, then the MLP
    workspace = 4.0 * model.vocab / layout.tensor
    number = NUMBER[cache]
    if focus is not None:  # queries by group and an fp32 output for each, keys and values in order
        workspace += at_once * (focus.top_k * (2.0 + 4) * queries + 4.0 * queries + 4.0 * keys)
        workspace += 2 * layout.focus_bytes(model, tokens, focus, number)  # what is sent and what has come
        adapter = 4.0 * model.layers * focus.group_dim * (model.hidden + focus.num_groups)
    else:
        adapter = 0.0
        if layout.sequence > 1:  # two blocks of the ring: one in use, one on its way
            workspace += 2 * 2 * own * keys * number
    return Holding(
        weights=weight_bytes(model, weights, layout.tensor) + adapter,
        cache=cache_bytes(model, tokens, cache, focus, layout),
        activations=activations,
        workspace=workspace + CONTEXT + FRAGMENTS * (activations + workspace),
    )
