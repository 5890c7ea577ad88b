"""All parts of a benchmark, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from ..discover import device_of
from .facts import head_shape
from .gate import ready
from .options import BenchConfig
from .rows import Row


def run_bench(
    model: PreTrainedModel,
    tokenizer: Any,
    config: BenchConfig | None = None,
    *,
    on_row: Callable[[Row], None] | None = None,
    progress: bool = True,
) -> list[Row]:
    """The parts that the options name, for a retrofitted model; kernel is a layer of its shape, training both."""
    from .decode import bench_decode
    from .kernel import bench_kernel
    from .prefill import bench_prefill
    from .step import bench_step
    from .training import bench_training

    config = BenchConfig() if config is None else config
    common: dict[str, Any] = {"repeats": config.repeats, "on_row": on_row, "progress": progress}
    focus, rows = ready(model), []
    for part in config.chosen_parts():
        if part == "kernel":
            device = device_of(model).type
            shape = head_shape(model)
            rows += bench_kernel(config.lengths, focus.config, *shape, model.dtype, device=device, **common)
        elif part == "prefill":
            rows += bench_prefill(model, tokenizer, config.lengths, memory=config.memory, **common)
        elif part == "decode":
            rows += bench_decode(model, tokenizer, config.lengths, config.new_tokens, **common)
        else:
            shape, options = head_shape(model), {**common, "memory": config.memory}
            device = device_of(model).type
            rows += bench_training(config.lengths, focus.config, *shape, model.dtype, device=device, **options)
            rows += bench_step(model, tokenizer, config.lengths, **options)
    return rows
