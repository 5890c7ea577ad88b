"""What reading and writing text costs, counted, and how long that takes at given rates.

Counts are of four kinds, and a time is their sum, each over its rate:

    matmul   FLOPs of the layers' linear maps, of routers and of the head: 2 per matrix element and token
    pairs    FLOPs of attention: 4 x query width per visible pair and layer
    moved    bytes that are read and written beside these: in decoding, weights and keys; in a prefill with Focus,
             sorting, gathering and merging
    calls    kernels that are started

The same counts are made for a GPU, whose rates come from its data sheet, and for the machine a benchmark ran on, whose
rates are measured or fitted (`check.py`).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from ..config import FocusConfig
from .hardware import GPU, GPUS
from .models import ModelFacts

MATMUL = 0.6  # share of peak speed in projections and MLP, with all that is not a matrix product
FLASH = 0.6  # share of peak speed in a long FlashAttention call
HBM = 0.8  # share of the memory's data sheet speed
CALL = 4e-6  # seconds to start a kernel in a recorded graph
LAYER_CALLS, FOCUS_CALLS = 10, 8  # kernels of a layer, and those that Focus adds: router, sort, gather, calls, merge

# Fitted to the paper's table of speeds on an H100 (K = 4 and 8, 16K to 1M tokens): beside its visible pairs, Focus
# takes for each token as long as full attention for this many pairs. It is memory traffic: it goes with bandwidth.
OVERHEAD_PAIRS = 2900
PAPER_GPU = GPUS["h100-80"]
OVERHEAD_BYTES = OVERHEAD_PAIRS * 4 / (PAPER_GPU.tflops * 1e12 * FLASH) * PAPER_GPU.hbm * 1e9 * HBM
"""Per token and number of a query, with as many key heads: about 26 passes in bf16."""


@dataclass(frozen=True)
class Rates:
    """What a device does in a second; `call` is seconds per kernel."""

    matmul: float
    flash: float
    bandwidth: float
    call: float = 0.0


@dataclass(frozen=True)
class Work:
    """What is to be done, in the units of the rates."""

    matmul: float = 0.0
    pairs: float = 0.0
    moved: float = 0.0
    calls: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def times(self, factor: float) -> Work:
        return Work(*(factor * count for count in astuple(self)))

    def parts(self, rates: Rates) -> tuple[float, float, float, float]:
        """Seconds of each kind."""
        return (
            self.matmul / rates.matmul,
            self.pairs / rates.flash,
            self.moved / rates.bandwidth,
            self.calls * rates.call,
        )

    def seconds(self, rates: Rates) -> float:
        return sum(self.parts(rates))


def gpu_rates(gpu: GPU) -> Rates:
    peak = gpu.tflops * 1e12
    return Rates(peak * MATMUL, peak * FLASH, gpu.hbm * 1e9 * HBM, CALL)


def causal_pairs(tokens: int) -> float:
    return tokens * (tokens + 1) / 2


def visible_pairs(tokens: int, focus: FocusConfig) -> float:
    """Of even groups. With match 'share', k groups of each side meet more often than k / K."""
    beyond = max(tokens - focus.window - 1, 0)
    return causal_pairs(tokens) - beyond * (beyond + 1) / 2 * (1 - match_chance(focus))


def density(tokens: int, focus: FocusConfig) -> float:
    """Share of the causal pairs that are visible, for even groups."""
    return visible_pairs(tokens, focus) / causal_pairs(tokens)


def match_chance(focus: FocusConfig) -> float:
    """That a distant pair is visible."""
    groups, top_k = focus.num_groups, focus.top_k
    if focus.match == "probe" or top_k == 1:
        return top_k / groups
    missed = 1.0
    for drawn in range(top_k):
        missed *= max(groups - top_k - drawn, 0) / (groups - drawn)
    return 1 - missed


def read_keys(tokens: int, focus: FocusConfig) -> float:
    """Keys that a token after `tokens` others reads: window and sinks, and its groups' share of the rest."""
    near = min(tokens, focus.window + focus.sinks)
    return near + (tokens - near) * match_chance(focus)


def attention_work(model: ModelFacts, pairs: float) -> Work:
    """Of one layer."""
    return Work(pairs=4.0 * model.query_width * pairs)


def focus_work(model: ModelFacts, tokens: int, focus: FocusConfig, pairs: float | None = None) -> Work:
    """Attention of one layer with Focus: its pairs, and sorting, gathering and merging, of queries once per group."""
    width = (focus.top_k * model.query_width + model.key_width) / 2
    moved = OVERHEAD_BYTES * tokens * width
    seen = visible_pairs(tokens, focus) if pairs is None else pairs
    return attention_work(model, seen) + Work(moved=moved, calls=FOCUS_CALLS)


def projections_work(model: ModelFacts, tokens: int) -> Work:
    """All of a prefill that is not attention, up to the logits of the next token."""
    flops = 2.0 * model.layers * model.layer_matrices * tokens + 2.0 * model.embedding
    return Work(matmul=flops, calls=LAYER_CALLS * model.layers)


def router_work(model: ModelFacts, tokens: int, focus: FocusConfig) -> Work:
    numbers = model.layers * focus.group_dim * (model.hidden + focus.num_groups)
    return Work(matmul=2.0 * numbers * tokens)


def prefill_work(model: ModelFacts, tokens: int, focus: FocusConfig | None = None) -> tuple[Work, Work]:
    """Of a whole prompt: beside attention, and in it; full attention without `focus`."""
    beside = projections_work(model, tokens)
    if focus is None:
        return beside, attention_work(model, causal_pairs(tokens)).times(model.layers)
    return beside + router_work(model, tokens, focus), focus_work(model, tokens, focus).times(model.layers)


def decode_work(model: ModelFacts, keys: float, key_bytes: float, weights: float, focused: bool) -> Work:
    """Of one token that reads `keys` keys with their values in every layer, and all weights."""
    cache = 2.0 * model.layers * model.key_width * keys * key_bytes
    calls = model.layers * (LAYER_CALLS + (FOCUS_CALLS if focused else 0))
    return Work(moved=weights + cache, calls=calls)
