"""A whole training step of a retrofitted model: loss and backward of its routers, against the base model's.

The base is frozen on both sides. With full attention there is no router to train, so its step is what training any
small adapter of a frozen model costs at least: the same loss, its gradient carried back to the inputs. The share of
attention is read off a step without it, in which gradients pass no queries and keys: it counts their projections too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from ..discover import device_of
from ..training.objectives import Objective, shifted
from .facts import check_positions, head_shape, mean_density, model_facts, position_limit
from .full import default_implementation, full_attention, no_attention, ready_made
from .gate import check_model, gate_length, ready
from .options import parse_lengths
from .prefill import agreeing, attention_share
from .rows import FOCUS, FULL, Peaks, Row, make_row
from .text import sample_ids
from .timing import NOTHING, Note, Way, fastest_full, in_turn, peak_of, rounds, steps
from .training_gate import check_training
from .training_steps import Routed, explored_text, explores, hard_work, steps_of


def bench_step(
    model: PreTrainedModel,
    tokenizer: Any,
    lengths: str | Iterable[int],
    *,
    repeats: int = 3,
    memory: bool = True,
    on_row: Callable[[Row], None] | None = None,
    progress: bool = True,
) -> list[Row]:
    """Seconds of one step of lm-hard on real text, batch 1, without the optimizer; `model` is retrofitted, and its
    logits and a layer's gradients are gated first. A row for each `explore`: as configured, or else k and K."""
    ready(model)
    lengths = parse_lengths(lengths)
    check_positions(model, lengths[-1])
    ids = sample_ids(tokenizer, max(lengths[-1], gate_length(model))).to(device_of(model))
    rows = []
    with steps("training step", lengths, progress) as (todo, note):
        note("checking against the dense reference")
        sample = ids[:, : min(gate_length(model), position_limit(model) or ids.shape[1])]
        check_model(model, sample, decode=False)
        _check_gradients(model)
        with torch.inference_mode():
            fulls = agreeing(model, sample, note, ready_made(model))
        with _training(model):
            for tokens in todo:
                for row in _rows(model, ids[:, :tokens], fulls, repeats, memory, note):
                    rows.append(row)
                    if on_row is not None:
                        on_row(row)
    return rows


def _check_gradients(model: PreTrainedModel) -> None:
    focus: Any = model.focus
    config = focus.config
    (q_heads, kv_heads), size = head_shape(model)
    sizes = (config.num_groups, config.top_k, config.window, config.sinks, config.match)
    layer = Routed(0, *sizes, q_heads, kv_heads, size, model.dtype, device_of(model).type)
    check_training(layer, steps_of(config, soft=False), config)


@contextmanager
def _training(model: PreTrainedModel) -> Iterator[None]:
    """As the trainer has it: potentials follow each batch, only routers learn. Afterwards all is as it was."""
    focus: Any = model.focus
    potentials = [router.potentials.clone() for router in focus.routers.values()]
    flags = [(p, p.requires_grad) for p in model.parameters()]
    own = {id(p) for p in focus.trainable_parameters()}
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(id(parameter) in own)
        model.train()
        with torch.enable_grad():
            yield
    finally:
        model.eval()
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
            parameter.grad = None
        for router, kept in zip(focus.routers.values(), potentials, strict=True):
            router.potentials.copy_(kept)
            router.batch = None


def _rows(
    model: PreTrainedModel, ids: Tensor, fulls: dict[str, str], repeats: int, memory: bool, note: Note
) -> list[Row]:
    focus: Any = model.focus
    tokens, config = ids.shape[1], focus.config
    focused = {explored_text(config, explore): explore for explore in explores(config)}
    ways = {FULL + x: Way(partial(_base_step, model, ids), partial(_to_inputs, model, fulls[x])) for x in fulls}
    ways[NOTHING] = Way(partial(_base_step, model, ids), partial(_to_inputs, model, no_attention(model)))
    for name, explore in focused.items():
        ways[name] = Way(partial(_router_step, model, ids), partial(_exploring, model, explore))
    default = FULL + default_implementation(model)
    times = in_turn(ways, rounds(repeats, tokens), note, always=default)
    strongest, density, facts = fastest_full(times), mean_density(model), model_facts(model)
    peaks = {name: peak_of(ways, name, note) for name in (strongest, *focused)} if memory else {}
    what, _, dtype = facts.pop("setup").rpartition(", ")
    size = head_shape(model)[1]
    return [
        make_row(
            "training",
            tokens,
            {**{x: times[x] for x in times if x not in focused}, FOCUS: times[name]},
            default=default,
            density=density,
            attention_share=attention_share(times, strongest),
            work=hard_work(tokens, density, explore, config.num_groups, config.window, size),
            memory=Peaks(peaks[strongest], peaks[name]) if memory else None,
            setup=f"{what}, step of {name}, full: gradient to the inputs, {dtype}",
            beyond_positions=tokens > (position_limit(model) or tokens),
            **facts,
        )
        for name, explore in focused.items()
    ]


@contextmanager
def _exploring(model: PreTrainedModel, explore: int) -> Iterator[None]:
    focus: Any = model.focus
    before, focus.config.explore = focus.config.explore, explore
    try:
        yield
    finally:
        focus.config.explore = before


def _router_step(model: PreTrainedModel, ids: Tensor) -> None:
    focus: Any = model.focus
    loss = Objective("lm-hard")(model, focus, {"input_ids": ids, "labels": ids}, float(ids.shape[1] - 1))
    loss.backward()
    for parameter in focus.trainable_parameters():
        parameter.grad = None


def _base_step(model: PreTrainedModel, ids: Tensor) -> None:
    predictions, targets = shifted(model(input_ids=ids, use_cache=False).logits, ids)
    F.cross_entropy(predictions, targets, reduction="sum").div(ids.shape[1] - 1).backward()


@contextmanager
def _to_inputs(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Full attention, and embeddings that ask for a gradient."""
    hook = model.get_input_embeddings().register_forward_hook(lambda module, given, out: out.requires_grad_())
    try:
        with full_attention(model, implementation):
            yield
    finally:
        hook.remove()
