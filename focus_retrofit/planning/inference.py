"""What reading a long prompt and writing after it takes, with full attention and with Focus, for every way to spread a
model over GPUs. The counts are in costs.py, the bytes in holding.py, what GPUs send each other in layouts.py."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from focus_kernels.errors import FocusError

from ..config import FocusConfig
from .costs import (
    CALL,
    FLASH,
    FOCUS_CALLS,
    HBM,
    LAYER_CALLS,
    MATMUL,
    OVERHEAD_BYTES,
    decode_work,
    density,
    gpu_rates,
    prefill_work,
    read_keys,
)
from .hardware import GPU, find_gpu
from .holding import NUMBER, SPARE, WEIGHT, Holding, holding, weight_bytes
from .layouts import LINK_LATENCY, NODE, Layout, layouts
from .models import ModelFacts, find_model
from .training import CONTEXT, FRAGMENTS

CHUNK = 8192


@dataclass(frozen=True)
class Ask:
    """What is to be served, and on what."""

    model: ModelFacts
    focus: FocusConfig
    gpu: GPU
    context: int
    gpus: int
    cache: str = "bf16"
    weights: str = "bf16"
    chunk: int = CHUNK
    node: int = NODE

    def __post_init__(self) -> None:
        for name in ("context", "gpus", "chunk", "node"):
            if getattr(self, name) < 1:
                raise FocusError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name, known in (("cache", NUMBER), ("weights", WEIGHT)):
            if getattr(self, name) not in known:
                raise FocusError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(known)}")


@dataclass(frozen=True)
class Seconds:
    """Of a prefill."""

    projections: float
    attention: float  # visible pairs
    overhead: float  # of Focus: sorting, gathering, merging; and starting kernels
    communication: float  # what computing does not hide

    @property
    def total(self) -> float:
        return sum(asdict(self).values())

    def to_dict(self) -> dict[str, float]:
        return {**asdict(self), "total": self.total}


@dataclass(frozen=True)
class Side:
    """Full attention, or Focus."""

    memory: Holding
    fits: bool
    prefill: Seconds
    gather: float  # seconds until one team has the cache
    token_seconds: float | None  # of each decoded token; None: the cache does not fit on one team

    @property
    def first_token(self) -> float:
        """Seconds until it is there: a prefill ends with its logits."""
        return self.prefill.total

    @property
    def tokens_per_second(self) -> float | None:
        return None if self.token_seconds is None else 1 / self.token_seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            "memory": self.memory.to_dict(),
            "fits": self.fits,
            "prefill": self.prefill.to_dict(),
            "first_token_seconds": self.first_token,
            "gather_seconds": self.gather,
            "tokens_per_second": self.tokens_per_second,
        }


@dataclass(frozen=True)
class Way:
    """One way to spread the model, with both kinds of attention."""

    layout: Layout
    full: Side
    focus: Side

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def prefill_speedup(self) -> float:
        return self.full.first_token / self.focus.first_token

    @property
    def decode_speedup(self) -> float | None:
        full, focus = self.full.token_seconds, self.focus.token_seconds
        return None if full is None or focus is None else full / focus

    @property
    def attention_share(self) -> float:
        """Of full attention's prefill: all that Focus could save."""
        return self.full.prefill.attention / self.full.first_token

    def to_dict(self) -> dict[str, Any]:
        return {
            "way": self.name,
            "tensor": self.layout.tensor,
            "sequence": self.layout.sequence,
            "full": self.full.to_dict(),
            "focus": self.focus.to_dict(),
            "prefill_speedup": self.prefill_speedup,
            "decode_speedup": self.decode_speedup,
            "attention_share": self.attention_share,
        }


@dataclass(frozen=True)
class Serving:
    """Every way for one context and number of GPUs."""

    ask: Ask
    ways: tuple[Way, ...]

    @property
    def best(self) -> Way | None:
        """Soonest ready to write, of those where Focus fits; one that can only read comes last."""
        fitting = [way for way in self.ways if way.focus.fits]
        return min(
            fitting,
            key=lambda way: (way.focus.token_seconds is None, way.focus.first_token + way.focus.gather),
            default=None,
        )

    def way(self, name: str) -> Way:
        return next(way for way in self.ways if way.name == name)

    @property
    def density(self) -> float:
        return density(self.ask.context, self.ask.focus)

    @property
    def assumptions(self) -> list[str]:
        """What the numbers rest on."""
        gpu, focus = self.ask.gpu, self.ask.focus
        return [
            f"{MATMUL:.0%} of {gpu.tflops:g} TFLOPS ({gpu.dtype}) in projections and MLP, {FLASH:.0%} in attention; "
            f"{HBM:.0%} of {gpu.hbm:g} GB/s of memory; {CALL * 1e6:g} us per kernel, {LAYER_CALLS} per layer, "
            f"{FOCUS_CALLS} more with Focus",
            f"Focus: pairs as fast as full attention's, and {OVERHEAD_BYTES:.0f} bytes moved per token and number of a "
            "query, fitted to the paper's table of speeds on an H100 and not measured by us",
            f"K = {focus.num_groups}, k = {focus.top_k}, window {focus.window}, even groups, all layers, batch 1; "
            f"prompts in chunks of {self.ask.chunk} tokens",
            f"cache in {self.ask.cache} ({SPARE:.2%} to spare and int16 groups with Focus), weights in "
            f"{self.ask.weights}; {CONTEXT / 1e9:g} GB for CUDA, {FRAGMENTS:.0%} lost between allocations; GB are 1e9 "
            "bytes",
            f"{gpu.link:g} GB/s per GPU within a node of {self.ask.node}, {gpu.network:g} between nodes, "
            f"{LINK_LATENCY * 1e6:g} us at least; computing hides a ring's transfers, not those of tensor parallelism "
            "nor of Focus",
            "sequence parallel (sp), each GPU reads its slice of the prompt at once, full attention by a ring; one "
            "team of tensor parallel GPUs then gathers the cache and writes, which takes room for all of it",
        ]

    def to_dict(self) -> dict[str, Any]:
        best = self.best
        return {
            "context": self.ask.context,
            "gpus": self.ask.gpus,
            "gpu": asdict(self.ask.gpu),
            "density": self.density,
            "ways": [way.to_dict() for way in self.ways],
            "best": None if best is None else best.name,
            "assumptions": self.assumptions,
        }


def plan_inference(
    model: str | os.PathLike[str] | ModelFacts,
    *,
    contexts: Iterable[int],
    gpus: Iterable[int] = (1,),
    gpu: str | GPU = "a100-80",
    focus: FocusConfig | None = None,
    cache: str = "bf16",
    weights: str = "bf16",
    chunk: int = CHUNK,
    node: int = NODE,
) -> list[Serving]:
    """What every way to serve `model` takes, for each context and number of GPUs; one text at a time."""
    facts = model if isinstance(model, ModelFacts) else find_model(model)
    device = gpu if isinstance(gpu, GPU) else find_gpu(gpu)
    first = Ask(facts, focus or FocusConfig(), device, 1, 1, cache, weights, chunk, node)
    counts = list(gpus)
    return [serve(replace(first, context=context, gpus=count)) for context in contexts for count in counts]


def serve(ask: Ask) -> Serving:
    return Serving(ask, tuple(_way(ask, layout) for layout in layouts(ask.model, ask.gpus, ask.node)))


def _way(ask: Ask, layout: Layout) -> Way:
    return Way(layout, _side(ask, layout, None), _side(ask, layout, ask.focus))


def _side(ask: Ask, layout: Layout, focus: FocusConfig | None) -> Side:
    team = replace(layout, sequence=1)
    reading, writing = (_memory(ask, one, focus) for one in (layout, team))
    room = ask.gpu.memory * 1e9
    return Side(
        memory=reading,
        fits=reading.total <= room,
        prefill=_prefill(ask, layout, focus),
        gather=layout.gather_seconds(ask.gpu, writing.cache),
        token_seconds=_token(ask, team, focus) if layout.sequence == 1 or writing.total <= room else None,
    )


def _memory(ask: Ask, layout: Layout, focus: FocusConfig | None) -> Holding:
    return holding(ask.model, ask.context, ask.chunk, layout, focus, ask.weights, ask.cache)


def _prefill(ask: Ask, layout: Layout, focus: FocusConfig | None) -> Seconds:
    model, tokens, rates = ask.model, ask.context, gpu_rates(ask.gpu)
    chunks = 1 if layout.sequence > 1 else -(-tokens // ask.chunk)
    beside, inside = (work.times(1 / layout.gpus) for work in prefill_work(model, tokens, focus))
    projections, _, _, _ = beside.parts(rates)
    _, attention, moved, _ = inside.parts(rates)
    calls = model.layers * chunks * (LAYER_CALLS + (FOCUS_CALLS if focus else 0)) * CALL
    sums = layout.all_reduce_seconds(ask.gpu, model, layout.tokens(tokens), chunks)
    number, link = NUMBER[ask.cache], layout.sequence_link(ask.gpu)
    if focus is not None:
        travel = model.layers * layout.focus_bytes(model, tokens, focus, number) / link
    else:
        travel = max(model.layers * layout.ring_bytes(model, tokens, number) / link - attention, 0.0)
    return Seconds(projections, attention, moved + calls, sums + travel)


def _token(ask: Ask, layout: Layout, focus: FocusConfig | None) -> float:
    """A decoded token: every GPU of a team reads its weights and its heads' keys."""
    model = ask.model
    keys = read_keys(ask.context, focus) if focus else ask.context
    own = replace(model, heads=layout.heads(model), kv_heads=layout.kv_heads(model), head_dim=model.size)
    weights = weight_bytes(model, ask.weights, layout.tensor)
    work = decode_work(own, keys, NUMBER[ask.cache], weights, focused=focus is not None)
    return work.seconds(gpu_rates(ask.gpu)) + layout.token_latency(model)
