"""A random life of a model's cache: prompts, chunks, tokens, crops, rows chosen anew, against the model without one."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from focus_kernels.soak.cases import demand
from focus_retrofit import FocusCache, FocusConfig, retrofit
from tests.matrix import FAMILIES, VOCABULARY

LONGEST = 150


def draw_config(pick: Random) -> FocusConfig:
    num_groups, window = pick.randint(1, 6), pick.choice([4, 8, 20])
    return FocusConfig(
        num_groups=num_groups,
        top_k=pick.randint(1, min(num_groups, 3)),
        window=window,
        sinks=pick.choice([0, 1, 4]),
        match=pick.choice(["probe", "share"]),
        temperature=pick.choice([None, None, 0.6]),
        temperature_scope=pick.choice(["distant", "all"]),
        min_length=pick.choice([0, 0, 30]),
    )


class Life:
    """A cache, and beside it the tokens [B, T] and the mask of what it holds."""

    def __init__(self, pick: Random, model: Any, atol: float, crops: bool):
        self.pick, self.model, self.atol, self.crops = pick, model, atol, crops
        self.cache = FocusCache(model)
        rows = pick.randint(1, 3)
        self.ids = torch.empty(rows, 0, dtype=torch.long)
        self.mask = torch.empty(rows, 0, dtype=torch.long)

    def layout(self) -> dict[str, Tensor]:
        return {"attention_mask": self.mask, "position_ids": (self.mask.cumsum(1) - 1).clamp_min(0)}

    def take_in(self, count: int) -> Tensor:
        """A chunk of `count` columns; the first one may be padded on the left, as a batch of prompts is."""
        pick, (rows, before) = self.pick, self.ids.shape
        new = torch.tensor([[pick.randrange(2, VOCABULARY) for _ in range(count)] for _ in range(rows)])
        real = torch.ones_like(new)
        if not before and count > 4 and pick.random() < 0.4:
            for row in range(rows):
                real[row, : pick.randrange(count // 2)] = 0
        self.ids, self.mask = torch.cat([self.ids, new], 1), torch.cat([self.mask, real], 1)
        layout = self.layout()
        with torch.no_grad():
            return self.model(
                new,
                past_key_values=self.cache,
                attention_mask=layout["attention_mask"],
                position_ids=layout["position_ids"][:, before:],
            ).logits

    def feed(self, chunks: list[int]) -> None:
        """Chunk after chunk, then all of their logits against the model's without a cache."""
        before = self.ids.shape[1]
        found = torch.cat([self.take_in(count) for count in chunks], 1)
        with torch.no_grad():
            wanted = self.model(self.ids, use_cache=False, **self.layout()).logits[:, before:]
        error = float((found - wanted)[self.mask[:, before:].bool()].abs().max())
        demand(error <= self.atol, f"{before} + {chunks} tokens: wrong by {error:.3g}, allowed is {self.atol:.3g}")

    def crop(self) -> None:
        """To nothing, by a few tokens, or by any number of them."""
        if not self.crops:
            return
        held = self.ids.shape[1]
        count = self.pick.choice([held, self.pick.randint(0, held), min(3, held)])
        self.cache.crop(-count)
        self.ids, self.mask = self.ids[:, : held - count], self.mask[:, : held - count]

    def choose(self) -> None:
        rows = len(self.ids)
        kind = self.pick.choice(["reorder", "repeat", "select"])
        if kind == "repeat" and rows < 3:
            self.cache.batch_repeat_interleave(2)
            chosen = torch.arange(rows).repeat_interleave(2)
        elif kind == "select":
            chosen = torch.tensor([self.pick.randrange(rows) for _ in range(self.pick.randint(1, rows))])
            self.cache.batch_select_indices(chosen)
        else:
            chosen = torch.tensor([self.pick.randrange(rows) for _ in range(rows)])
            self.cache.reorder_cache(chosen)
        self.ids, self.mask = self.ids[chosen], self.mask[chosen]

    def generate(self) -> None:
        """Greedy, from what is held, with a cache of its own: each token is the best there is, up to rounding."""
        before = self.ids.shape[1]
        if not before:
            return
        ids = self.model.generate(
            self.ids, attention_mask=self.mask, max_new_tokens=self.pick.randint(1, 8), do_sample=False
        )
        mask = torch.cat([self.mask, torch.ones_like(ids[:, before:])], 1)
        with torch.no_grad():
            places = (mask.cumsum(1) - 1).clamp_min(0)
            logits = self.model(ids, attention_mask=mask, position_ids=places, use_cache=False).logits
        best = logits[:, before - 1 : -1].float()  # as generate looks at them
        behind = best.amax(-1) - best.gather(2, ids[:, before:, None])[..., 0]
        demand(float(behind.max()) <= max(self.atol, 1e-5), f"generate fell behind by {float(behind.max()):.3g}")

    def step(self) -> None:
        kind = self.pick.choice(["chunk", "chunk", "tokens", "crop", "choose", "generate"])
        if self.ids.shape[1] > LONGEST:
            self.crop()
        elif not self.ids.shape[1] or kind == "chunk":
            self.feed([self.pick.choice([1, 7, 40, 70])])
        elif kind == "tokens":
            self.feed([1] * self.pick.randint(2, 6))
        else:
            getattr(self, kind)()


def run_model(pick: Random) -> str:
    """Draw a family and options, and let a cache of it live; says what it was."""
    family, config = pick.choice(FAMILIES), draw_config(pick)
    model = retrofit(family.make(seed=pick.randrange(1000)), config)
    # transformers' own layers with a sliding window cannot be cropped once it is full
    life = Life(pick, model, max(family.rounding, 1e-9), crops=len(family.full_layers) == 3)
    steps = pick.randint(3, 7)
    for _ in range(steps):
        life.step()
    return f"{family} {steps} steps"
