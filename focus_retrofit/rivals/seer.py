"""A gate that learned which blocks full attention looks at: SeerAttention (Gao et al., 2024).

Queries are not pooled: a pooled query would know of later tokens of its block. Blocks of keys are, by mean, largest and
smallest; the gate learns, layer by layer, the largest attention that full attention has in each block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax
from tqdm.auto import tqdm

from focus_kernels import FocusError

from .base import Text
from .blocks import SIZE, Blocks
from .reading import read_layers

WIDTH = 32  # of the gate
STEPS = 20  # of Adam for each window in each layer
RATE = 2e-3


class Gate(nn.Module):
    """One layer's: a map of queries per head, one of pooled keys per head of keys."""

    def __init__(self, heads: int, groups: int, size: int):
        super().__init__()
        self.query = nn.Parameter(torch.randn(heads, size, WIDTH) * size**-0.5)
        self.key = nn.Parameter(torch.randn(groups, 3 * size, WIDTH) * (3 * size) ** -0.5)

    def forward(self, query: Tensor, pooled: Tensor) -> Tensor:
        """query [Hq, n, D], pooled [Hkv, blocks, 3 D] -> [Hq, n, blocks]"""
        keys = (pooled @ self.key).repeat_interleave(len(query) // len(pooled), 0)
        return query @ (self.query @ keys.transpose(1, 2)) * WIDTH**-0.5


def pool(text: Text, size: int, sinks: int) -> Tensor:
    """[Hkv, blocks, 3 D]: mean, largest and smallest of each component over the keys of a block."""
    count = max(text.tokens - sinks, 0) // size
    keys = text.key.float()[:, sinks : sinks + count * size].unflatten(1, (count, size))
    return torch.cat([keys.mean(2), keys.amax(2), keys.amin(2)], -1)


@dataclass
class Seer(Blocks):
    name = "seer"
    choosing = 1 / (4 * SIZE)  # with heads of 64
    title = "SeerAttention blocks"
    what = "blocks by a learned gate"
    learns = True
    gates: dict[int, Gate] = field(default_factory=dict)

    def scores(self, text: Text, size: int) -> Tensor:
        if text.layer not in self.gates:
            raise FocusError(f"the gate of layer {text.layer} has learned nothing: call prepare() with training text")
        return self.gates[text.layer](text.query.float(), pool(text, size, self.sinks))

    def prepare(self, model: Any, windows: list[Tensor]) -> None:
        optimizers: dict[int, torch.optim.Optimizer] = {}

        def look(text: Text) -> None:
            if text.layer not in self.gates:
                shape = text.query.shape[0], text.key.shape[0], text.query.shape[2]
                self.gates[text.layer] = Gate(*shape).to(text.query.device)
                optimizers[text.layer] = torch.optim.Adam(self.gates[text.layer].parameters(), RATE)
            self._learn(text, optimizers[text.layer])

        with torch.random.fork_rng():
            torch.manual_seed(0)
            read_layers(model, tqdm(windows, desc=self.what, unit=" windows", leave=False), look)
        for gate in self.gates.values():
            gate.requires_grad_(False)

    def state(self) -> dict[str, Tensor]:
        return {f"{layer}.{name}": x for layer, gate in self.gates.items() for name, x in gate.state_dict().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for layer in sorted({int(name.partition(".")[0]) for name in state}):
            query, key = state[f"{layer}.query"], state[f"{layer}.key"]
            self.gates[layer] = Gate(len(query), len(key), query.shape[1]).requires_grad_(False)
            self.gates[layer].load_state_dict({"query": query, "key": key})

    @torch.enable_grad()
    def _learn(self, text: Text, optimizer: torch.optim.Optimizer) -> None:
        size, gate = self.block(text), self.gates[text.layer]
        target, allowed = self._wanted(text, size)
        rows = allowed.sum(-1) > 1  # nothing to choose before
        if not bool(rows.any()):
            return
        query, pooled = text.query.float()[:, rows], pool(text, size, self.sinks)
        target, barred = target[:, rows], ~allowed[rows]
        for _ in range(STEPS):
            scores = gate(query, pooled).masked_fill(barred, -1e9)
            loss = -(target * log_softmax(scores, -1)).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @torch.no_grad()
    def _wanted(self, text: Text, size: int) -> tuple[Tensor, Tensor]:
        """[Hq, n, blocks], rows summing to 1: the largest attention within each block; and what may be chosen."""
        weights = text.logits().masked_fill(text.distance() < 0, float("-inf")).softmax(-1)
        allowed = self.allowed(text, size)
        count = allowed.shape[1]
        largest = weights[..., self.sinks : self.sinks + count * size].unflatten(2, (count, size)).amax(-1)
        largest = largest.masked_fill(~allowed, 0.0)
        return largest / largest.sum(-1, keepdim=True).clamp_min(1e-20), allowed
