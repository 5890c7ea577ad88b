"""A random life of a `KeyBuckets`: chunks of any size, prompts, tokens, crops and choices of rows."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from ..attend import attend_chunk
from ..reference import reference_attention
from ..stream import KeyBuckets
from .calls import DTYPES, draw_case
from .cases import Case, demand, error_limit

LONGEST = 400  # tokens of a row, at which it is cropped


class Life:
    """A stream, and beside it what each of its rows holds: a list of tokens of the case, which is their store."""

    def __init__(self, pick: Random, case: Case, dtype: torch.dtype, backend: str):
        self.pick, self.case, self.dtype, self.backend = pick, case, dtype, backend
        self.rows: list[list[int]] = [[] for _ in range(pick.randint(1, 3))]
        names = ("num_groups", "window", "sinks", "match")
        self.stream = KeyBuckets(**{name: case.options[name] for name in names})
        names = ("temperature", "temperature_scope", "softcap", "sink_logits")
        self.options = {name: case.options[name] for name in names}

    def take_in(self, count: int, attend: bool) -> list[Tensor]:
        """A chunk of `count` columns, some of them padding; if it is attended, what its real tokens got, by row."""
        pick, case = self.pick, self.case
        drawn = [[pick.randrange(case.tokens) for _ in range(count)] for _ in self.rows]
        tokens = torch.tensor(drawn, dtype=torch.long)
        mask = torch.ones(tokens.shape, dtype=torch.bool)
        if pick.random() < 0.3:
            mask = torch.tensor([[pick.random() < 0.8 for _ in range(count)] for _ in self.rows], dtype=torch.bool)
        query, key, value = (self._of(x, tokens) for x in case.tensors(self.dtype))
        chunk = (key, value, case.ids[0][tokens], None if bool(mask.all()) and pick.random() < 0.5 else mask)
        for row, new, real in zip(self.rows, tokens, mask, strict=True):
            row += new[real].tolist()
        if not attend:
            self.stream.prefill(*chunk)
            return []
        self.stream.append(*chunk)
        out = attend_chunk(query, self.stream, backend=self.backend, **self.options)
        demand((out.transpose(1, 2)[~mask] == 0).all(), "padding is not empty")  # type: ignore[union-attr]
        return [part[:, real] for part, real in zip(out, mask, strict=True)]

    def attend(self, chunks: list[int]) -> None:
        """Chunk after chunk, then all that they got against the oracle."""
        outs = [self.take_in(count, attend=True) for count in chunks]
        for row, parts in zip(self.rows, zip(*outs, strict=True), strict=True):
            self._compare(torch.cat(parts, 1), row)

    def crop(self) -> None:
        """Some of the newest tokens of each row, none of them, or all."""
        held = [len(row) for row in self.rows]
        counts = [self.pick.choice([0, many, self.pick.randint(0, many), min(3, many)]) for many in held]
        self.stream.crop(counts)
        self.rows = [row[: len(row) - count] for row, count in zip(self.rows, counts, strict=True)]

    def choose(self) -> None:
        """Rows anew: some twice, some not at all."""
        chosen = [self.pick.randrange(len(self.rows)) for _ in range(self.pick.randint(1, 3))]
        self.stream.select_rows(chosen)
        self.rows = [list(self.rows[i]) for i in chosen]

    def step(self) -> None:
        """Anything that may happen to a stream."""
        kind = self.pick.choice(["chunk", "chunk", "prompt", "tokens", "crop", "choose"])
        if max(map(len, self.rows)) > LONGEST:
            self.crop()
        elif not self.stream.rows or kind == "chunk":
            self.attend([self.pick.choice([1, 2, 7, 40])])
        elif kind == "prompt":
            self.take_in(self.pick.choice([0, 3, 60, 150]), attend=False)
        elif kind == "tokens":
            self.attend([1] * self.pick.randint(2, 12))
        elif kind == "crop":
            self.crop()
        else:
            self.choose()
        demand(self.stream.lengths == [len(row) for row in self.rows], f"lengths {self.stream.lengths}")

    def _of(self, store: Tensor, tokens: Tensor) -> Tensor:
        """store [1, H, n, D] at tokens [B, c] -> [B, H, c, D]."""
        return store[0][:, tokens].transpose(0, 1)

    def _compare(self, out: Tensor, row: list[int]) -> None:
        """out [Hq, c, Dv], of the last tokens of a row, beside dense attention over all of it."""
        if not out.shape[1]:
            return
        case, tokens = self.case, torch.tensor([row])
        q, k, v = (self._of(x, tokens) for x in case.tensors(self.dtype))
        asked: dict[str, Any] = {**case.options, "padding_mask": None, "sequence_ids": None}
        groups, last = case.ids[0][tokens], slice(-out.shape[1], None)
        exact: Any = reference_attention(q.double(), k.double(), v.double(), groups, **asked)
        same: Any = exact if self.dtype == torch.float64 else reference_attention(q, k, v, groups, **asked)
        want, dense = exact[0, :, last], same[0, :, last]
        error, limit = float((out.double() - want).abs().max()), error_limit(self.dtype, dense, want)
        if self.dtype == torch.float32:
            limit = max(limit, 1e-5)  # heads and chunks are few: dense attention may be right by luck
        demand(error <= limit, f"row of {len(row)} tokens: wrong by {error:.3g}, allowed is {limit:.3g}")


@torch.no_grad()
def run_stream(pick: Random) -> str:
    """Draw a stream and let it live; says what it was."""
    case = draw_case(pick, tokens=pick.randint(20, 80), batch=1, padding="none", documents=1)
    dtype = pick.choice(DTYPES)
    backend = "auto" if case.softcap or pick.random() < 0.7 else "eager"
    life = Life(pick, case, dtype, backend)
    steps = pick.randint(3, 9)
    for _ in range(steps):
        life.step()
    return f"{backend} {str(dtype).removeprefix('torch.')} {steps} steps"
