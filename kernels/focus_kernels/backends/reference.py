"""The dense oracle under the name of a backend."""

from __future__ import annotations

from torch import Tensor

from ..call import Call
from ..reference import dense

name = "reference"


def unavailable() -> str | None:
    """Why this backend cannot run here at all."""
    return None


def refuse(call: Call) -> str | None:
    """Why this backend cannot serve this call."""
    return None


def run(call: Call) -> tuple[Tensor, Tensor]:
    return dense(call.query, call.key, call.value, call.groups, call.problem, call.padding_mask, call.sequence_ids)
