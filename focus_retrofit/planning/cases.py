"""Rows of a benchmark file as cases of the cost model: which model, which Focus, what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from focus_kernels.errors import FocusError

from ..config import FocusConfig
from .costs import causal_pairs
from .models import MODELS, ModelFacts

BYTES = {"float32": 4.0, "float64": 8.0, "bfloat16": 2.0, "float16": 2.0}
KERNEL = re.compile(r"(one layer|\d+ layers), (\d+)/(\d+) heads of (\d+)")
LAYERS = re.compile(r", (?:(\d+) of )?(\d+) layers")
FOCUS = re.compile(r"K = (\d+), k = (\d+)(, share)?, window (\d+)")
DENSE = re.compile(r"dense below (\d+)")


@dataclass(frozen=True)
class Case:
    """One measured row."""

    part: str
    setup: str
    tokens: int
    model: ModelFacts
    taken: int  # layers with Focus
    focus: FocusConfig
    density: float  # measured: it is a fact of the adapter and the text, not of the machine
    number: float  # bytes
    full: float  # seconds
    focused: float
    attention_share: float | None
    memory: float | None  # of decode: bytes of Focus's cache over those of a full one
    dense: bool  # below the length from which Focus is used

    @property
    def seen(self) -> float:
        """Visible pairs of a layer."""
        return self.density * causal_pairs(self.tokens)


def make_case(row: Mapping[str, Any], model: ModelFacts | None = None) -> Case:
    """From a row; its setup names the model, unless another is given."""
    setup = row["setup"]
    options = FOCUS.search(setup)
    if options is None:
        raise FocusError(
            f"the row's setup {setup!r} does not state K, k and the window; measure again with this version"
        )
    groups, top_k, share, window = options.groups()
    focus = FocusConfig(
        num_groups=int(groups),
        top_k=int(top_k),
        match="share" if share else "probe",
        window=int(window),
        sinks=min(4, int(window)),
    )
    facts, taken = _facts(setup, model)
    dense = DENSE.search(setup)
    return Case(
        part=row["part"],
        setup=setup,
        tokens=row["tokens"],
        model=facts,
        taken=taken,
        focus=focus,
        density=row["density"],
        number=BYTES[row.get("dtype") or "float32"],
        full=row["full_seconds"],
        focused=row["focus_seconds"],
        attention_share=row.get("attention_share"),
        memory=row.get("memory") if row["part"] == "decode" else None,
        dense=dense is not None and row["tokens"] < int(dense[1]),
    )


def _facts(setup: str, model: ModelFacts | None) -> tuple[ModelFacts, int]:
    """Sizes of what a row measured, and how many of its layers had Focus."""
    layer = KERNEL.match(setup)
    if layer is not None:
        heads, kv_heads, size = (int(number) for number in layer.groups()[1:])
        layers = 1 if layer[1] == "one layer" else int(layer[1].split()[0])
        return ModelFacts("attention", heads * size, layers, heads, kv_heads, 0, 0, head_dim=size), layers
    name = setup.split(",")[0].strip()
    model = model or MODELS.get(re.sub(r"-instruct$", "", name.lower()))
    if model is None:
        raise FocusError(f"a row is of {name!r}, whose sizes are not known; name its model with --model")
    counted = LAYERS.search(setup)
    if counted is None:
        return model, model.layers
    layers = int(counted[2])
    return replace(model, layers=layers), int(counted[1] or layers)
