"""Does an adapter keep its promises on a model? Each check gives a number, its limit, and whether it holds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from focus_kernels import FocusError

# of logits; models in float64 still have parts in float32, such as the softmax of an eager attention
ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.1}


@dataclass(frozen=True)
class Check:
    """`holds` is None where a promise does not apply; `detail` says what was done, or why not."""

    name: str
    holds: bool | None
    value: float | None
    limit: float | None
    detail: str


@dataclass(frozen=True)
class Audit:
    checks: list[Check]

    @property
    def holds(self) -> bool:
        return all(check.holds is not False for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {"holds": self.holds, "checks": [asdict(check) for check in self.checks]}


def audit(model: Any, ids: Tensor, *, largest_group: float | None = None) -> Audit:
    """Check a retrofitted model on a text [T], several windows long.

    largest_group: share of the tokens that one group may hold in a layer, by default twice an even share: one text is
    less even than many together.
    """
    focus = getattr(model, "focus", None)
    if focus is None:
        raise FocusError("this model has no Focus attention: call retrofit or load_adapter first")
    least = 2 * focus.config.window + 32
    if ids.dim() != 1 or len(ids) < least:
        raise FocusError(
            f"the text to audit with has shape {list(ids.shape)}; give one text [T] of at least {least} tokens, twice "
            "the window and some more"
        )
    ids = ids.to(model.device)[None]
    even = 1 / focus.config.num_groups
    limit = min(1.0, 2 * even) if largest_group is None else largest_group
    checks: list[Callable[[], Check]] = [
        lambda: _tensors(focus),
        lambda: _frozen(model),
        lambda: _disabled(model, ids),
        lambda: _leak(model, ids, "hard"),
        lambda: _leak(model, ids, "soft"),
        lambda: _within_window(model, ids),
        lambda: _all_groups(model, ids),
        lambda: _exact(model, ids),
        lambda: _cached(model, ids),
        lambda: _balanced(model, ids, limit),
        lambda: _alive(model, 0.1 * even),
    ]
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            return Audit([check() for check in tqdm(checks, desc="audit", unit=" checks", leave=False)])
    finally:
        model.train(training)


def _logits(model: Any, ids: Tensor) -> Tensor:
    return model(ids, use_cache=False).logits.float()


def _apart(a: Tensor, b: Tensor) -> float:
    """Largest difference; NaN, where there is one, fails every limit."""
    return float((a - b).abs().max())


@contextmanager
def _set(thing: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(thing, name) for name in values}
    for name, value in values.items():
        setattr(thing, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)


def _tensors(focus: Any) -> Check:
    wrong = sum(int((~torch.isfinite(tensor)).sum()) for tensor in focus.tensors().values())
    return Check("finite adapter", wrong == 0, wrong, 0, "numbers of the adapter that are not finite")


def _frozen(model: Any) -> Check:
    own = {id(p) for p in model.focus.trainable_parameters()}
    loose = sum(p.requires_grad and id(p) not in own for p in model.parameters())
    return Check("frozen base", loose == 0, loose, 0, "parameters of the base model that would train")


def _disabled(model: Any, ids: Tensor) -> Check:
    """Against a copy, on the same weights, from which the adapter was taken out."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    base = copy.deepcopy(model, shared).focus.unload()
    for parameter, flag in flags:  # unloading gave the weights back to whoever trains them
        parameter.requires_grad_(flag)
    with model.focus.disabled():
        value = _apart(_logits(model, ids), _logits(base, ids))
    return Check("disabled is the base", value == 0, value, 0, "largest change of a logit by a disabled adapter")


def _leak(model: Any, ids: Tensor, mode: str) -> Check:
    name = f"no leak from the future, {mode}"
    half = ids.shape[1] // 2
    changed = ids.clone()
    changed[:, half:] = changed[:, half:].flip(1)
    changed[:, -1] = (changed[:, -1] + 1) % model.get_input_embeddings().num_embeddings
    with _set(model.focus, mode=mode):
        value = _apart(_logits(model, ids)[:, :half], _logits(model, changed)[:, :half])
    detail = "largest change of a past logit when everything after it changes"
    if model.focus.config.leaks:
        detail += "; balance='sinkhorn' looks at later tokens"
    return Check(name, value == 0, value, 0, detail)


def _within_window(model: Any, ids: Tensor) -> Check:
    focus, name = model.focus, "equals the base within the window"
    config, short = focus.config, ids[:, : focus.config.window + 1]
    if config.temperature is not None and config.temperature_scope == "all":
        return Check(name, None, None, None, "temperature_scope='all' changes nearby pairs too, as asked")
    with focus.disabled():
        base = _logits(model, short)
    value, limit = _apart(_logits(model, short), base), ROUNDING[model.dtype]
    return Check(name, value <= limit, value, limit, f"largest difference of a logit over {short.shape[1]} tokens")


def _all_groups(model: Any, ids: Tensor) -> Check:
    focus, name = model.focus, "equals the base at k = K"
    if focus.config.temperature is not None:
        return Check(name, None, None, None, f"temperature is {focus.config.temperature!r}, not 1")
    with focus.disabled():
        base = _logits(model, ids)
    with _set(focus.config, top_k=focus.config.num_groups, layer_top_k=None):
        value, limit = _apart(_logits(model, ids), base), ROUNDING[model.dtype]
    return Check(name, value <= limit, value, limit, f"largest difference of a logit over {ids.shape[1]} tokens")


def _exact(model: Any, ids: Tensor) -> Check:
    focus = model.focus
    served = _logits(model, ids)
    with _set(focus, backend="reference"):
        value, limit = _apart(served, _logits(model, ids)), ROUNDING[model.dtype]
    detail = "largest difference of a logit between the backend that serves and the dense reference"
    return Check("exact attention", value <= limit, value, limit, detail)


def _cached(model: Any, ids: Tensor) -> Check:
    """Half of the text at once and the rest token by token, against all at once."""
    name = "cache gives the same"
    if model.focus.config.leaks:
        return Check(name, None, None, None, "balance='sinkhorn' looks at later tokens and keeps no cache")
    count = min(8, ids.shape[1] // 2)
    whole, cache = _logits(model, ids), model.focus.new_cache()
    model(ids[:, :-count], past_key_values=cache, use_cache=True)
    parts = [
        model(ids[:, n : n + 1], past_key_values=cache, use_cache=True).logits.float()
        for n in range(ids.shape[1] - count, ids.shape[1])
    ]
    value, limit = _apart(torch.cat(parts, 1), whole[:, -count:]), ROUNDING[model.dtype]
    return Check(name, value <= limit, value, limit, f"{count} tokens decoded one by one against one pass")


def _balanced(model: Any, ids: Tensor, limit: float) -> Check:
    _logits(model, ids)
    lines = [line for line in model.focus.report().layers if line.shares]
    if not lines:
        return Check("balanced groups", None, None, limit, "no layer routed this text: it is below min_length")
    worst = max(lines, key=lambda line: max(line.shares))
    value = max(worst.shares)
    return Check(
        "balanced groups", value <= limit, value, limit, f"largest group of all layers, in layer {worst.layer}"
    )


def _alive(model: Any, limit: float) -> Check:
    lines = [line for line in model.focus.report().layers if line.shares]
    if not lines:
        return Check("no dead group", None, None, limit, "no layer routed this text: it is below min_length")
    worst = min(lines, key=lambda line: min(line.shares))
    value = min(worst.shares)
    return Check("no dead group", value >= limit, value, limit, f"smallest group of all layers, in layer {worst.layer}")
