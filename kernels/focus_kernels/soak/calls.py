"""A random call of `focus_attention`."""

from __future__ import annotations

from random import Random

import torch

from ..api import which_backend
from ..backends import BackendError
from .cases import Case, check

BACKENDS = ("auto", "cpu:sorted", "cpu:chunked", "eager:sorted", "eager:chunked", "flash_attn", "torch_varlen")
DTYPES = (torch.float64, torch.float32, torch.float32, torch.bfloat16)


def draw_case(pick: Random, tokens: int, **fixed: object) -> Case:
    """Heads, groups and options, for a sequence of this many tokens."""
    num_groups, window = pick.randint(1, 9), pick.choice([0, 1, 3, 8, 17, 40])
    drawn: dict[str, object] = {
        "tokens": tokens,
        "window": window,
        "num_groups": num_groups,
        "top_k": pick.choice([1, 1, min(2, num_groups), pick.randint(1, num_groups)]),
        "sinks": pick.randint(0, min(window, 6)),
        "batch": pick.randint(1, 3),
        "heads": pick.choice([(1, 1), (2, 2), (4, 2), (3, 1), (6, 3)]),
        "size": pick.choice([4, 8, 11, 32]),
        "value_size": pick.choice([None, None, 5, 16]),
        "match": pick.choice(["probe", "share"]),
        "temperature": pick.choice([None, None, 0.5, 1.7, "heads"]),
        "temperature_scope": pick.choice(["distant", "all"]),
        "softcap": pick.choice([None, None, None, 4.0]),
        "learned_sinks": pick.random() < 0.3,
        "padding": pick.choice(["none", "left", "right", "ragged"]),
        "documents": pick.choice([1, 1, 2, 3]),
        "groups": pick.choice(["random", "random", "one", "alternate"]),
        "seed": pick.randrange(2**31),
    }
    return Case(**{**drawn, **fixed})  # type: ignore[arg-type]


def run_call(pick: Random) -> str:
    """Draw a call and check it; says what it was."""
    case = draw_case(pick, tokens=pick.choice([pick.randint(1, 40), pick.randint(40, 330)]))
    dtype = pick.choice(DTYPES)
    served = [name for name in BACKENDS if _serves(case, name, dtype)]
    backend = pick.choice(served)
    check(case, backend, dtype)
    return f"{backend} {str(dtype).removeprefix('torch.')} {case.tokens} tokens"


def _serves(case: Case, backend: str, dtype: torch.dtype) -> bool:
    try:
        which_backend(*case.tensors(dtype), case.ids, backend=backend, **case.options)
    except BackendError:
        return False
    return True
