"""What a layer did in the last whole-sequence call and in the decoding after it, for `model.focus.report()`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from focus_kernels.plan import visible_pairs
from focus_kernels.problem import Problem

from .config import FocusConfig
from .masks import Layout
from .router import Routing

SMALL = 1 << 16  # numbers that are kept as they are


@dataclass
class Stats:
    """Kept as cheaply as it comes; counted only when somebody asks."""

    groups: Tensor | None = None  # [B, T, k] of the last whole-sequence call
    layout: Layout | None = None
    logits: Tensor | None = None  # [B, T, K] of a short one
    certain: Tensor | None = None  # its confidence, of a long one
    later: Callable[[], Routing] | None = None  # gives all of these, of a call whose groups nobody has asked for
    dense_below: int = 0
    routing: str = "not run yet"
    pairs: Tensor | None = None  # [visible, causal, local], where a rival attended instead
    read: int = 0  # keys read by decoding since, and keys there were
    there: int = 0

    def note_call(self, routed: Routing, dense_below: int, routing: str) -> None:
        self.groups, self.layout, self.pairs = routed.groups, routed.layout, None
        self.logits, self.certain = routed.logits.detach(), None
        if self.logits.numel() > SMALL:
            self.certain, self.logits = self.confidence(), None
        self.later, self.dense_below, self.routing, self.read, self.there = None, dense_below, routing, 0, 0

    def note_later(self, later: Callable[[], Routing], dense_below: int, routing: str) -> None:
        self.groups = self.layout = self.logits = self.certain = self.pairs = None
        self.later, self.dense_below, self.routing, self.read, self.there = later, dense_below, routing, 0, 0

    def known(self) -> Stats:
        """With the groups of the last call."""
        if self.later is not None:
            read, there = self.read, self.there
            with torch.no_grad():
                self.note_call(self.later(), self.dense_below, self.routing)
            self.note_decoding(read, there)
        return self

    def confidence(self) -> Tensor | None:
        """Mean of the largest soft assignment."""
        if self.logits is None or self.layout is None:
            return self.certain
        best = self.logits.softmax(-1).amax(-1)
        return (best if self.layout.real is None else best[self.layout.real.to(best.device)]).mean()

    def note_decoding(self, read: int, there: int) -> None:
        self.read, self.there = self.read + read, self.there + there


@dataclass(frozen=True)
class LayerReport:
    """One line of a report; `density` is the share of causal pairs that was computed, `distant` of those beyond the
    window alone."""

    layer: int
    routing: str
    density: float | None = None
    distant: float | None = None
    decode_density: float | None = None
    shares: list[float] = field(default_factory=list)
    confidence: float | None = None
    temperature: float | None = None  # the mean over heads, where they have their own


@dataclass(frozen=True)
class Report:
    """What the layers of a model did, as a table (`print`) or as plain data (`to_dict`)."""

    mode: str
    enabled: bool
    dense_below: int
    layers: list[LayerReport]

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "layers": [vars(layer) for layer in self.layers]}

    def __str__(self) -> str:
        state = "enabled" if self.enabled else "disabled"
        lines = [
            f"Focus {state}, mode {self.mode}, dense below position {self.dense_below}",
            f"{'layer':>5}  {'routing':<24}"
            + "".join(f" {x:>8}" for x in ("density", "distant", "decoding", "confid.", "largest"))
            + "  group shares",
        ]
        for x in self.layers:
            shares = " ".join(f"{100 * share:3.0f}" for share in x.shares)
            largest = max(x.shares) if x.shares else None
            numbers = "".join(
                f" {_percent(n):>8}" for n in (x.density, x.distant, x.decode_density, x.confidence, largest)
            )
            lines.append(f"{x.layer:>5}  {x.routing:<24}{numbers}  {shares}".rstrip())
        return "\n".join(lines)


def _percent(number: float | None) -> str:
    return "-" if number is None else f"{100 * number:.1f}%"


def describe(layer: int, stats: Stats, config: FocusConfig, temperature: float | None) -> LayerReport:
    """Count what the last call left behind."""
    stats.known()
    if stats.pairs is not None:
        visible, causal, local = stats.pairs.tolist()
        distant = (visible - local) / (causal - local) if causal > local else None
        return LayerReport(layer, stats.routing, visible / max(causal, 1), distant, temperature=temperature)
    confidence = stats.confidence()
    if stats.groups is None or stats.layout is None or confidence is None:
        return LayerReport(layer, stats.routing, temperature=temperature)
    visible = causal = local = 0
    documents = stats.layout.documents
    for number, row in enumerate(stats.groups):
        if documents is None:
            parts = [row]
        else:
            ids = documents[number].to(row.device)
            parts = [row[ids == x] for x in ids.unique().tolist() if x >= 0]
        for part in parts:
            seen, there = count_pairs(part, config, stats.dense_below)
            visible, causal, local = visible + seen, causal + there, local + local_pairs(len(part), config.window)
    first = stats.groups[..., 0]
    if stats.layout.real is not None:
        first = first[stats.layout.real.to(first.device)]
    counts = torch.bincount(first.flatten(), minlength=config.num_groups)
    return LayerReport(
        layer,
        stats.routing,
        visible / max(causal, 1),
        (visible - local) / (causal - local) if causal > local else None,
        stats.read / stats.there if stats.there else None,
        (counts / counts.sum().clamp_min(1)).tolist(),
        float(confidence),
        temperature,
    )


def local_pairs(tokens: int, window: int) -> int:
    """Causal pairs no further apart than the window."""
    beyond = max(tokens - window - 1, 0)
    return tokens * (tokens + 1) // 2 - beyond * (beyond + 1) // 2


def count_pairs(groups: Tensor, config: FocusConfig, dense_below: int = 0) -> tuple[int, int]:
    """(visible, causal) pairs per head of one document with groups [T, k]."""
    tokens, k = groups.shape
    problem = Problem(config.num_groups, k, config.window, config.sinks, config.match, 1.0, None, "distant", None, None)
    dense = min(dense_below, tokens)
    visible = visible_pairs(groups, problem)
    if dense:
        visible += dense * (dense + 1) // 2 - visible_pairs(groups[:dense], problem)
    return visible, tokens * (tokens + 1) // 2
