"""Configurations by number: the number is all it takes to draw one again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from .calls import run_call
from .streams import run_stream

Kind = Callable[[Random], str]
KERNELS: dict[str, Kind] = {"call": run_call, "stream": run_stream}


@dataclass(frozen=True)
class Failure:
    """A configuration that did not do what the contract says."""

    number: int
    kind: str
    message: str


def soak(
    count: int, seed: int = 0, kinds: Mapping[str, Kind] = KERNELS, note: Callable[[str], None] | None = None
) -> list[Failure]:
    """Run the configurations seed, seed + 1, ...; each is of the kind that its number says, turn by turn."""
    names, failures = sorted(kinds), []
    for number in range(seed, seed + count):
        kind = names[number % len(names)]
        try:
            told = kinds[kind](Random(number))
        except Exception as error:  # whatever it is, it is a finding
            message = " ".join(f"{type(error).__name__}: {error}".split())
            failures.append(Failure(number, kind, message))
            told = message
        if note is not None:
            note(f"{number} {kind}: {told}")
    return failures


def record(count: int, seed: int, failures: list[Failure]) -> dict[str, Any]:
    """What is written down of a run."""
    import torch

    found = [{"number": f.number, "kind": f.kind, "message": f.message} for f in failures]
    return {"count": count, "seed": seed, "torch": torch.__version__, "failures": found}
