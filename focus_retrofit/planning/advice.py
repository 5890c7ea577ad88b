"""What to change where a model and its cache do not fit."""

from __future__ import annotations

from dataclasses import replace

from .costs import read_keys
from .holding import NUMBER, cache_bytes
from .inference import Ask, Serving, serve

MOST = 512  # GPUs to look for
HOST = 25.0  # GB/s at which a GPU reads what lies in the host's memory


def advice(serving: Serving) -> str | None:
    """What would fit, for a context and number of GPUs with which nothing does; None where something does."""
    ask, best = serving.ask, serving.best
    if best is not None and best.focus.token_seconds is not None:
        return None
    tried = [*_changes(ask), *((f"--gpus {count}", replace(ask, gpus=count)) for count in _more(ask.gpus))]
    served = [(name, serve(changed).best) for name, changed in tried]
    found = [
        f"{name} ({way.name}, {way.focus.memory.total / 1e9:.0f} GB)"
        for name, way in served
        if way is not None and way.focus.token_seconds is not None
    ]
    found = [*(line for line in found if "--gpus" not in line), *[line for line in found if "--gpus" in line][:1]]
    spilled = _spill(serving)
    if spilled is not None:
        found.append(spilled)
    where = f"{ask.context:,} tokens on {ask.gpus} x {ask.gpu.name} "
    where += "do not fit" if best is None else "can be read, but no team has room to gather the cache and write"
    return f"{where}; what would: {'; or '.join(found) or 'larger GPUs, or a smaller model'}"


def _changes(ask: Ask) -> list[tuple[str, Ask]]:
    """Smaller numbers, the least loss first."""
    steps = []
    if NUMBER[ask.cache] > NUMBER["bf16"]:
        steps.append(("--cache bf16", replace(ask, cache="bf16")))
    if ask.cache != "fp8":
        steps.append(("--cache fp8", replace(ask, cache="fp8")))
    if ask.weights != "nf4":
        steps.append(("--weights nf4", replace(ask, weights="nf4")))
    return [*steps, ("--cache fp8 --weights nf4", replace(ask, cache="fp8", weights="nf4"))]


def _more(gpus: int) -> list[int]:
    found = []
    while gpus < MOST:
        gpus *= 2
        found.append(gpus)
    return found


def _spill(serving: Serving) -> str | None:
    """The cache in the host's memory: a token then reads its groups' keys from there, or all keys."""
    ask = serving.ask
    for way in serving.ways:
        memory = way.focus.memory
        if way.layout.sequence == 1 and memory.total - memory.cache <= ask.gpu.memory * 1e9:
            break
    else:
        return None
    each = cache_bytes(ask.model, 1, ask.cache, None, way.layout)
    focus, full = (keys * each / (HOST * 1e9) for keys in (read_keys(ask.context, ask.focus), ask.context))
    return (
        f"a spilled cache ({way.name}, {ask.gpus * memory.cache / 1e9:.0f} GB in the host's memory, read at {HOST:g} "
        f"GB/s per GPU: at most {1 / focus:.2g} tokens/s with Focus, {1 / full:.2g} with full attention)"
    )
