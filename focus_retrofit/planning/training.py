"""What training the routers takes, for every way to lay a frozen model out over GPUs: memory per GPU and time.

Bytes, n = batch * length tokens per GPU, d hidden, q and kv widths of all query and key heads, f intermediate, H heads,
T length. The base is frozen: a linear map keeps nothing for its backward, so a layer keeps, per token,

    norms      4 d + 4 each (RMSNorm: its input in fp32), 2 d + 4 (LayerNorm)
    router     4 d (its input in fp32) + 4 group_dim + 4 K
    attention  hard: 2 (2 q + 2 kv) + 4 H + 8 explore    soft: 10 q, and (6 H + 10) T for the pairs
    MLP        6 f (gate, its activation, up), 8 f where it is not gated

which is what autograd is seen to keep (tests/retrofit/test_plan.py). To that comes what one layer uses while it is
computed (`_working`), at once with the logits: an upper bound. 'mass' goes through no backward: one layer is alive.

FLOPs: 2 per matrix element and token forward, as many backward (no weight has a gradient), one more forward of the
layers with checkpointing, a dense forward for 'distill'; and the pairs of attention. Times are estimates: none is
measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from focus_kernels import FocusError

from ..config import FocusConfig
from .hardware import GPU, find_gpu
from .models import ModelFacts, find_model

OBJECTIVES = ("lm", "lm-hard", "mass", "distill")
UTILISATION = 0.4  # share of peak speed that training reaches
FP32_COST = 8  # time of an fp32 product over a half-precision one
ROWS = 128  # queries that 'mass' weighs at once
NF4 = 0.516  # bytes per number: 4 bits, and doubly quantised scales per 64
NF4_SPEED = 0.7  # of half precision: weights are unpacked for every product
CONTEXT = 1.0e9  # bytes that CUDA, its libraries and NCCL take
FRAGMENTS = 0.1  # of what comes and goes, lost between allocations
TIE = 0.01  # ways this close in speed are equal: the simpler is recommended

# per logit: half and fp32 copies, the softmax and its gradient; the base's predictions, twice, and three terms of the
# divergence; for 'mass' they are computed and dropped
LOGIT_BYTES = {"lm": 12, "lm-hard": 12, "distill": 30, "mass": 2}
GATHERS = {"lm": 2, "lm-hard": 2, "distill": 3, "mass": 1}  # passes over the weights in a step


@dataclass(frozen=True)
class Run:
    """What is to be trained, and on what."""

    model: ModelFacts
    focus: FocusConfig
    objective: str
    length: int
    batch: int  # sequences per GPU and step
    steps: int

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise FocusError(
                f"objective is {self.objective!r}; choose one of {', '.join(OBJECTIVES)} (of a sum, the dearest term)"
            )
        for name in ("length", "batch", "steps"):
            if getattr(self, name) < 1:
                raise FocusError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.length <= self.focus.window + 1:
            raise FocusError(
                f"length is {self.length}, within the window of {self.focus.window}: no pair is decided by groups, so "
                "there is nothing to learn; use a length of several windows"
            )

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def explore(self) -> int:
        return self.focus.explore or self.focus.num_groups

    @property
    def adapter(self) -> int:
        """Numbers that train."""
        focus = self.focus
        return self.model.layers * focus.group_dim * (self.model.hidden + focus.num_groups)


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest GPU."""

    weights: float
    adapter: float  # routers in fp32, their gradient and two moments
    activations: float
    attention: float  # what grows with pairs, and what one layer's attention uses while it is computed
    logits: float
    reserve: float

    @property
    def total(self) -> float:
        return sum(asdict(self).values())

    @property
    def largest(self) -> str:
        parts = asdict(self)
        return max(parts, key=lambda name: parts[name])

    def to_dict(self) -> dict[str, float]:
        return {**asdict(self), "total": self.total}


def kept(run: Run) -> tuple[float, float]:
    """Bytes a layer keeps for its backward: without pairs, and of pairs."""
    m, focus = run.model, run.focus
    if run.objective == "mass":
        return 0.0, 0.0
    per_token = m.norms * ((2 if m.norm_bias else 4) * m.hidden + 4)
    if m.query_norm:
        per_token += 4 * (m.query_width + m.key_width)
    per_token += 4 * (m.hidden + focus.group_dim + focus.num_groups)
    per_token += (6 if m.gated else 8) * m.intermediate
    if run.objective == "lm":
        return run.tokens * (per_token + 10 * m.query_width), run.tokens * run.length * (6.0 * m.heads + 10)
    per_token += 4 * (m.query_width + m.key_width) + 4 * m.heads + 8 * run.explore
    return float(run.tokens * per_token), 0.0


def _working(run: Run) -> tuple[float, float]:
    """Bytes one layer uses while it is computed: beside attention, and in it."""
    m, n = run.model, run.tokens
    if run.objective == "mass":  # a layer's forward, and rows of fp32 scores: three of them alive at once
        rows = run.batch * min(ROWS, run.length) * run.length
        return n * (14.0 * m.hidden + 4 * (m.query_width + m.key_width) + 6 * m.intermediate), (
            rows * (12.0 * m.heads + 24) + 4 * n * m.query_width
        )
    beside = n * (8.0 * m.intermediate + 16 * m.hidden)  # gradients around the MLP, and of two norms in fp32
    if run.objective == "lm":
        return beside, 12.0 * m.heads * n * run.length
    # packed and picked copies of q, k, v, out and its gradient, gradients in fp32 and half, with the gate's columns
    wide = -(-(m.size + 2 * run.focus.num_groups) // 8) * 8
    return beside, n * wide * (4.0 * (3 * m.heads + 2 * m.kv_heads) + 6.0 * (m.heads + 2 * m.kv_heads))


def memory(run: Run, weights: float, layers: int, checkpointing: bool) -> Memory:
    """Of a GPU that holds `weights` bytes of the base, and computes `layers` of its layers."""
    plain, pairs = kept(run)
    beside, inside = _working(run)
    alive = 1 if checkpointing else layers
    inputs = 2.0 * run.tokens * run.model.hidden * layers if checkpointing else 0.0
    activations, attention = alive * plain + inputs + beside, alive * pairs + inside
    logits = float(LOGIT_BYTES[run.objective] * run.tokens * run.model.vocab)
    reserve = CONTEXT + FRAGMENTS * (activations + attention + logits)
    return Memory(weights, 16.0 * run.adapter, activations, attention, logits, reserve)


def flops(run: Run, checkpointing: bool) -> float:
    """Of a step on one GPU, as half-precision operations."""
    m, focus = run.model, run.focus
    head = 2.0 * m.embedding * run.tokens
    layers = 2.0 * m.layers * m.layer_matrices * run.tokens
    square = float(run.batch * m.layers * m.heads * run.length**2)  # pairs, times heads and layers
    causal = run.batch * m.layers * m.heads * run.length * (run.length + 1) / 2
    beyond = run.length - focus.window - 1
    distant = run.batch * m.layers * m.heads * beyond * (beyond + 1) / 2
    dense = 4 * m.size * causal
    if run.objective == "mass":
        return head + layers + dense + 2 * FP32_COST * m.size * square
    if run.objective == "lm":
        forward, backward = (2 + 2 * FP32_COST) * m.size * square, (4 + 4 * FP32_COST) * m.size * square
    else:
        seen = causal - distant * (1 - focus.top_k / focus.num_groups)
        # of a pair: three products with the gate's columns, two without
        gate = 6 * (m.size + 2 * focus.num_groups) + 4 * m.size
        forward = 4 * m.size * seen
        backward = 10 * m.size * seen + gate * distant * run.explore / focus.num_groups
    total = 2 * head + 2 * layers + forward + backward
    if checkpointing:
        total += layers + forward
    return total + (head + layers + dense if run.objective == "distill" else 0)


@dataclass(frozen=True)
class Way:
    """One way to train, and what it takes."""

    name: str
    title: str
    fits: bool
    reason: str  # why it does not fit
    checkpointing: bool
    memory: Memory | None  # None: it needs more GPUs
    seconds: float  # per step
    tokens_per_second: float  # of all GPUs
    hours: float
    launch: str
    load: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "memory": None if self.memory is None else self.memory.to_dict()}


@dataclass(frozen=True)
class Plan:
    """Every way, and the one to take: the fastest that fits, the simplest of equals."""

    run: Run
    gpu: GPU
    gpus: int
    utilisation: float
    ways: tuple[Way, ...]

    @property
    def recommended(self) -> Way | None:
        fitting = [way for way in self.ways if way.fits]
        best = max((way.tokens_per_second for way in fitting), default=0.0)
        return next((way for way in fitting if way.tokens_per_second >= best * (1 - TIE)), None)

    def way(self, name: str) -> Way:
        return next(way for way in self.ways if way.name == name)

    @property
    def assumptions(self) -> list[str]:
        """What the numbers rest on."""
        return [
            f"{self.utilisation:.0%} of {self.gpu.tflops:g} TFLOPS ({self.gpu.dtype}) is reached; fp32 products take "
            f"{FP32_COST} times as long, 4-bit weights {1 / NF4_SPEED:.1f} times",
            f"weights are gathered at {self.gpu.link:g} GB/s while the GPU computes: a step takes the longer of both",
            "even groups, match='probe', gate='log', all layers retrofitted, a fused attention kernel",
            f"{CONTEXT / 1e9:g} GB for CUDA, {FRAGMENTS:.0%} lost between allocations; GB are 1e9 bytes",
        ]

    def to_dict(self) -> dict[str, Any]:
        run, best = self.run, self.recommended
        return {
            "model": run.model.to_dict(),
            "adapter_parameters": run.adapter,
            "focus": run.focus.to_dict(),
            "objective": run.objective,
            "length": run.length,
            "batch": run.batch,
            "steps": run.steps,
            "gpu": asdict(self.gpu),
            "gpus": self.gpus,
            "utilisation": self.utilisation,
            "ways": [way.to_dict() for way in self.ways],
            "recommended": None if best is None else best.name,
            "assumptions": self.assumptions,
        }


def plan(
    model: str | os.PathLike[str] | ModelFacts,
    *,
    gpu: str | GPU = "a100-80",
    gpus: int = 1,
    length: int = 2048,
    batch: int = 1,
    objective: str = "lm-hard",
    focus: FocusConfig | None = None,
    steps: int = 1000,
    utilisation: float = UTILISATION,
    checkpointing: bool | None = None,
) -> Plan:
    """What every way to train the routers of `model` takes; `batch` is per GPU, or of all GPUs with a device map.

    `checkpointing` None: only where it does not fit without.
    """
    if gpus < 1:
        raise FocusError(f"gpus is {gpus}; it must be at least 1")
    if not 0 < utilisation <= 1:
        raise FocusError(f"utilisation is {utilisation}; it must be above 0 and at most 1")
    facts = model if isinstance(model, ModelFacts) else find_model(model)
    run = Run(facts, focus or FocusConfig(), objective, length, batch, steps)
    device = gpu if isinstance(gpu, GPU) else find_gpu(gpu)
    ways = tuple(_way(kind, run, device, gpus, utilisation, checkpointing) for kind in KINDS)
    return Plan(run, device, gpus, utilisation, ways)


@dataclass(frozen=True)
class Kind:
    """How a way lays the model out; functions of the run and the number of GPUs."""

    name: str
    title: str
    weights: Callable[[Run, int], float]  # bytes on the fullest GPU
    launch: str
    load: str = ""  # further options of load_pretrained
    spread: bool = False  # layers over GPUs
    copies: bool = False  # every GPU has a batch of its own
    speed: float = 1.0
    gathered: bool = False  # weights travel with every pass


def _bf16(run: Run, gpus: int) -> float:
    return 2.0 * run.model.parameters


def _nf4(run: Run, gpus: int) -> float:
    """Matrices of the layers in 4 bits, all else in half precision; one matrix is unpacked at a time."""
    m = run.model
    small = m.layers * m.layer_matrices
    largest = m.hidden * max(m.intermediate, m.query_width)
    return NF4 * small + 2.0 * (m.parameters - small) + 2.0 * largest


def _slice(run: Run, gpus: int) -> float:
    """Of layers in order, the last GPU has the head too."""
    m = run.model
    return 2.0 * (-(-m.layers // gpus) * m.layer_parameters + m.embedding)


def _shard(run: Run, gpus: int) -> float:
    """A share of all, two layers whole (one is computed, one on its way), and the head, which stays whole."""
    m = run.model
    return 2.0 * (m.parameters / gpus + 2 * m.layer_parameters + m.embedding)


TRAIN = "-m focus_retrofit train MODEL DATA --output DIR"
LAUNCH = "accelerate launch --num_processes {gpus} --mixed_precision {dtype} " + TRAIN
KINDS = (
    Kind("one", "one GPU", _bf16, LAUNCH.replace("{gpus}", "1")),
    Kind(
        "one-4bit",
        "one GPU, 4-bit base",
        _nf4,
        LAUNCH.replace("{gpus}", "1"),
        'quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", '
        "bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype={torch})",
        speed=NF4_SPEED,
    ),
    Kind(
        "device-map",
        "layers over GPUs",
        _slice,
        "python " + TRAIN,
        'device_map="balanced"',
        spread=True,
    ),
    Kind("ddp", "a copy per GPU", _bf16, LAUNCH.replace("launch", "launch --multi_gpu"), copies=True),
    Kind(
        "fsdp2",
        "FSDP2, sharded",
        _shard,
        "accelerate launch --config_file {config} --num_processes {gpus} --mixed_precision {dtype} "
        "--fsdp_activation_checkpointing {checkpointing} " + TRAIN,
        copies=True,
        gathered=True,
    ),
)


def _way(kind: Kind, run: Run, gpu: GPU, gpus: int, utilisation: float, checkpointing: bool | None) -> Way:
    many = kind.spread or kind.copies
    tried = [False, True] if checkpointing is None else [checkpointing]
    if run.objective == "mass":  # nothing is kept for a backward
        tried = [False]
    layers = -(-run.model.layers // gpus) if kind.spread else run.model.layers
    for chosen in tried:
        found = memory(run, kind.weights(run, gpus), layers, chosen)
        if found.total <= gpu.memory * 1e9:
            break
    reason = _too_much(found, gpu, chosen)
    if many and gpus < 2:
        reason = "needs two GPUs or more"
    seconds = flops(run, chosen) / (gpu.tflops * 1e12 * utilisation * kind.speed)
    if kind.gathered:
        travel = GATHERS[run.objective] * 2.0 * run.model.parameters * (gpus - 1) / gpus
        seconds = max(seconds, travel / (gpu.link * 1e9))
    elif kind.copies:
        seconds += 8.0 * run.adapter / (gpu.link * 1e9)  # the routers' gradients, summed up
    words = {
        "gpus": gpus,
        "dtype": gpu.dtype,
        "torch": "torch.bfloat16" if gpu.dtype == "bf16" else "torch.float16",
        "checkpointing": str(chosen).lower(),
        "config": f"configs/fsdp2-{_config_size(run.model)}.yaml",
    }
    load = ", ".join(part for part in ("dtype={torch}", kind.load) if part).format(**words)
    return Way(
        name=kind.name,
        title=kind.title,
        fits=not reason,
        reason=reason,
        checkpointing=chosen,
        memory=None if many and gpus < 2 else found,
        seconds=seconds,
        tokens_per_second=run.tokens * (gpus if kind.copies else 1) / seconds,
        hours=run.steps * seconds / 3600,
        launch=kind.launch.format(**words),
        load=f"load_pretrained(name, {load})",
    )


def _too_much(found: Memory, gpu: GPU, checkpointing: bool) -> str:
    """Empty if it fits; otherwise what is too large."""
    if found.total <= gpu.memory * 1e9:
        return ""
    part = found.largest
    size = asdict(found)[part] / 1e9
    way = " even with gradient checkpointing" if checkpointing else ""
    which = f"{part} alone" if size > gpu.memory else f"largest part, {part}"
    return f"{found.total / 1e9:.1f} GB of {gpu.memory:g}{way}; {which}: {size:.1f} GB"


def _config_size(model: ModelFacts) -> str:
    """Which of the files in configs/ comes nearest."""
    return "7b" if model.parameters < 10e9 else "13b" if model.parameters < 30e9 else "70b"
