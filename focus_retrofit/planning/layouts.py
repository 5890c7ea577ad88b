"""How a model and its prompt are spread over GPUs: tensor parallel within a node, sequence parallel across."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config import FocusConfig
from ..parallel.traffic import expected_traffic, ring_bytes

if TYPE_CHECKING:
    from .hardware import GPU
    from .models import ModelFacts

NODE = 8  # GPUs that share the fast link
LINK_LATENCY = 15e-6  # seconds of a small collective


@dataclass(frozen=True)
class Layout:
    """`tensor` GPUs share every matrix and the heads, `sequence` such teams share the tokens."""

    tensor: int = 1
    sequence: int = 1
    node: int = NODE

    @property
    def gpus(self) -> int:
        return self.tensor * self.sequence

    @property
    def name(self) -> str:
        parts = [f"{name}{count}" for name, count in (("tp", self.tensor), ("sp", self.sequence)) if count > 1]
        return " x ".join(parts) or "one"

    def heads(self, model: ModelFacts) -> int:
        """Query heads of each GPU."""
        return model.heads // self.tensor

    def kv_heads(self, model: ModelFacts) -> int:
        """Key heads of each GPU; where there are fewer than GPUs, several hold the same."""
        return -(-model.kv_heads // self.tensor)

    def tokens(self, tokens: int) -> int:
        """Of each GPU."""
        return -(-tokens // self.sequence)

    def sequence_link(self, gpu: GPU) -> float:
        """Bytes per second between teams."""
        return (gpu.link if self.gpus <= self.node else min(gpu.link, gpu.network)) * 1e9

    def all_reduce_seconds(self, gpu: GPU, model: ModelFacts, tokens: int, chunks: int = 1) -> float:
        """Two sums of the hidden states in every layer, each twice around the team."""
        if self.tensor == 1:
            return 0.0
        size = 2.0 * tokens * model.hidden * 2 * (self.tensor - 1) / self.tensor
        return 2 * model.layers * (size / (gpu.link * 1e9) + chunks * LINK_LATENCY)

    def ring_bytes(self, model: ModelFacts, tokens: int, number: float) -> float:
        """That each GPU sends in a layer: the keys and values of all others' tokens pass it."""
        return ring_bytes(tokens, self.sequence, self.kv_heads(model), model.size, number) / self.sequence

    def focus_bytes(self, model: ModelFacts, tokens: int, focus: FocusConfig, number: float) -> float:
        """That each GPU sends in a layer, on average, when each group's pairs are computed where its keys meet."""
        if self.sequence == 1:
            return 0.0
        found = expected_traffic(
            tokens,
            self.sequence,
            focus.num_groups,
            focus.top_k,
            self.heads(model),
            self.kv_heads(model),
            model.size,
            focus.window,
            focus.sinks,
            number,
        )
        return found["total"] / self.sequence

    def gather_seconds(self, gpu: GPU, cache: float) -> float:
        """Until one team holds all of a cache of `cache` bytes per GPU of it."""
        return cache * (self.sequence - 1) / self.sequence / self.sequence_link(gpu)

    def token_latency(self, model: ModelFacts) -> float:
        """Of one decoded token: the sums."""
        return 2 * model.layers * LINK_LATENCY if self.tensor > 1 else 0.0


def layouts(model: ModelFacts, gpus: int, node: int = NODE) -> list[Layout]:
    """Every way to use all of `gpus`, from most to least tensor parallelism."""
    teams = [size for size in range(1, min(gpus, node) + 1) if gpus % size == 0 and node % size == 0]
    return [Layout(size, gpus // size, node) for size in reversed(teams) if model.heads % size == 0]
