"""The backends by name, and how one is found for a call. Each is a module with `unavailable`, `refuse` and `run`."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Protocol

from torch import Tensor

from ..call import Call, Runner
from ..errors import FocusError
from ..problem import Problem
from ..stream import KeyBuckets

# in the order in which "auto" asks
NAMES = ("cpu", "flash_attn", "torch_varlen", "flex", "eager", "reference")
ENGINES = ("sorted", "chunked")


class Backend(Protocol):
    name: str

    def unavailable(self) -> str | None: ...

    def refuse(self, call: Call) -> str | None: ...

    def run(self, call: Call) -> tuple[Tensor, Tensor]: ...

    runner: Runner  # for those that leave autograd to autograd.py

    def attend_stream(
        self, query: Tensor, stream: KeyBuckets, problem: Problem, groups: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...


class BackendError(FocusError):
    """The named backend cannot serve the call; the message says why, and which one would."""


def load(name: str) -> Backend:
    """A backend by name; imported on first use, so that none costs those who do not use it."""
    if name not in NAMES:
        raise FocusError(f"backend {name!r} is not known; choose 'auto' or one of {', '.join(NAMES)}")
    backend: Backend = import_module(f".{name}", __name__)
    return backend


def available_backends() -> tuple[str, ...]:
    """Names of the backends that can run on this machine, best first."""
    return tuple(name for name in NAMES if load(name).unavailable() is None)


LACKS = {"attend_stream": "it has no streaming form", "runner": "it leaves gradients to autograd"}


def _objection(name: str, call: Call, needs: str | None) -> str | None:
    backend = load(name)
    missing = backend.unavailable()
    if missing:
        return missing
    if needs and not hasattr(backend, needs):
        return LACKS[needs]
    reason = call.problem.needs_chunked
    if call.engine == "sorted" and reason:
        return f"the sorted engine cannot serve {reason}"
    return backend.refuse(call)


def find(choice: str, call: Call, needs: str | None = None) -> tuple[Backend, Call]:
    """The backend for `choice`: 'auto', a name, or 'name:engine'. An explicit choice is obeyed or refused.

    `needs`: what the backend must have besides `run`, a key of LACKS."""
    name, _, engine = choice.partition(":")
    if engine and engine not in ENGINES:
        raise FocusError(f"engine {engine!r} in backend {choice!r} is not known; choose one of {', '.join(ENGINES)}")
    call = replace(call, engine=engine or "auto")
    if name == "auto":
        for candidate in NAMES:
            # flex is a peer to measure against, asked for by name: it compiles on first use
            if candidate != "flex" and _objection(candidate, call, needs) is None:
                return load(candidate), call
    objection = _objection(name, call, needs)
    if objection is None:
        return load(name), call
    free = replace(call, engine="auto")
    others = [other for other in NAMES if other != name and _objection(other, free, needs) is None]
    if engine and _objection(name, free, needs) is None:
        others.insert(0, name)
    raise BackendError(f"backend {choice!r} cannot serve this call: {objection}; these would: {', '.join(others)}")
