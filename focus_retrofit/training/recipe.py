"""`train`: from a retrofitted model and a text to a trained adapter, in stages that can be interrupted and resumed."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, PreTrainedModel, TrainingArguments, default_data_collator, set_seed

from focus_kernels import FocusError

from ..adapter import TENSORS, read_adapter
from ..files import fill_atomically, write_atomically
from ..positions import positions_of
from .data import Windows, make_windows
from .fit import fit_routers
from .options import TrainConfig
from .search import Search
from .spread import spread_groups
from .trainer import FocusTrainer
from .warm import warm_start

CALIBRATION = 16  # windows for the warm start
DONE = "done.json"  # in a stage's folder once it is finished
Example = dict[str, torch.Tensor]


def train(
    model: PreTrainedModel,
    tokenizer: Any,
    data: Any,
    output_dir: str | os.PathLike[str],
    *,
    held_out: Any = None,
    config: TrainConfig | None = None,
    streaming: bool = False,
    only: str | None = None,
    **load: Any,
) -> dict[str, Any]:
    """Train a retrofitted model's adapter; it ends in `output_dir`/adapter. Returns what was measured.

    data and held_out: sources of `load_texts` (`load` are its options), or windows. Called again with the same
    output_dir it resumes: finished stages are skipped, an unfinished one goes on from its last checkpoint. With
    finetune_steps or frozen=False the whole model ends in `output_dir`/model. `only` names the one stage to run now.
    """
    config, output = config or TrainConfig(), Path(output_dir)
    focus: Any = getattr(model, "focus", None)
    if focus is None:
        raise FocusError("this model has no Focus attention yet: call retrofit(model, config) first")
    if config.length <= focus.config.window + 1:
        raise FocusError(
            f"length {config.length} lies within the window of {focus.config.window}: no pair is decided by groups, so "
            "there is nothing to learn; use a length of several windows"
        )
    windows, held = (
        source
        if source is None or isinstance(source, torch.utils.data.Dataset)
        else make_windows(
            source, tokenizer, config.length, apart=config.documents == "apart", streaming=stream, what=what, **load
        )
        for source, stream, what in ((data, streaming, "training text"), (held_out, False, "held-out text"))
    )
    set_seed(config.seed)
    _same_run(output, config, focus)
    results: dict[str, Any] = {"stages": {}}
    stages: list[tuple[str, Any]] = [("prepare", lambda folder: _prepare(model, windows, config))]
    if config.steps:
        stages.append(("train", lambda folder: _run(model, windows, held, config, folder, False)))
    if config.finetune_steps:
        stages.append(("finetune", lambda folder: _run(model, windows, held, config, folder, True)))
    if only is not None:
        if only not in dict(stages):
            raise FocusError(f"only is {only!r}; the stages of this run are: {', '.join(dict(stages))}")
        stages = stages[: 1 + list(dict(stages)).index(only)]
    elif os.environ.get("ACCELERATE_USE_FSDP") == "true" and not (output / "prepare" / DONE).is_file():
        raise FocusError("a sharded model cannot be prepared: run this on one process with only='prepare' first")
    for name, work in stages:
        results["stages"][name] = _stage(model, output / name, work, not config.frozen or name == "finetune")
    results["parameters"] = focus.num_parameters()
    results["minutes"] = sum(stage["minutes"] for stage in results["stages"].values())
    focus.save_pretrained(output / "adapter", results=_numbers(results))
    if (config.finetune_steps or not config.frozen) and _first_process():
        fill_atomically(output / "model", model.save_pretrained)
        fill_atomically(output / "model", tokenizer.save_pretrained)
    return results


def _same_run(output: Path, config: TrainConfig, focus: Any) -> None:
    """A folder belongs to one set of options: others would resume from something else."""
    options = {"train": asdict(config), "focus": focus.config.to_dict()}
    options["base"] = {"positions": positions_of(focus.model)}
    path = output / "options.json"
    if path.is_file():
        before = json.loads(path.read_text())
        changed = [
            f"{name} {before.get(part, {}).get(name)!r} -> {value!r}"
            for part in options
            for name, value in options[part].items()
            if before.get(part, {}).get(name) != value
        ]
        if changed:
            raise FocusError(f"{output} holds a run with other options ({'; '.join(changed)}): choose another folder")
        return
    output.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(options, indent=2) + "\n")


def _stage(model: Any, folder: Path, work: Any, whole: bool) -> dict[str, Any]:
    """Run a stage unless its folder says that it is done; then take what it left."""
    focus = model.focus
    if (folder / DONE).is_file() and (folder / TENSORS).is_file():
        if whole:
            saved = type(model).from_pretrained(folder, dtype=model.dtype)
            model.load_state_dict(saved.state_dict())
        left, tensors = read_adapter(model, folder)
        focus.load_tensors(tensors)
        focus.config.layer_top_k = left.layer_top_k
        return json.loads((folder / DONE).read_text())
    begun = time.perf_counter()
    found = work(folder) or {}
    found["minutes"] = (time.perf_counter() - begun) / 60
    if whole and _first_process():
        fill_atomically(folder, model.save_pretrained)
    focus.save_pretrained(folder)
    if _first_process():
        write_atomically(folder / DONE, json.dumps(found, indent=2) + "\n")
    return found


def _first_process() -> bool:
    return not (torch.distributed.is_initialized() and torch.distributed.get_rank())


def _prepare(model: Any, windows: Any, config: TrainConfig) -> dict[str, Any]:
    """Warm start and fit on some windows, spread on others; the same on every process."""
    focus, found = model.focus, dict[str, Any]()
    some_to_spread = 1 < focus.config.top_k < focus.config.num_groups and focus.config.match == "probe"
    wanted = config.spread_windows if some_to_spread and config.fit in ("gain", "sensitivity") else 0
    batches, others = (
        [{name: value[None] for name, value in example.items()} for example in part]
        for part in _first(windows, config.fit_windows, config.fit_rounds, wanted)
    )
    if config.warm_start:
        warm_start(model, batches[:CALIBRATION], seed=config.seed)
    if config.fit != "none":
        lost = fit_routers(
            model,
            batches,
            weights=config.fit,
            rounds=config.fit_rounds,
            trust=config.fit_trust,
            how=Search(config.fit_steps, config.fit_lr, config.fit_decay, config.fit_balance, config.fit_starts),
            seed=config.seed,
        )
        found["lost"] = sum(lost.values()) / len(lost)
    elif config.warm_start or focus.config.balance == "potentials":
        focus.balance(*(batch["input_ids"] for batch in batches[:4]))
    if others:
        found["groups"] = list(spread_groups(model, others, trust=config.fit_trust).values())
    return found


def _first(windows: Any, count: int, rounds: int, more: int = 0) -> tuple[list[Example], list[Example]]:
    """`count` windows to fit on and `more` others, both spread over the text where it can be read in any order.

    A short text comes again to be fitted on, in each of `rounds` once at most; a round takes each `rounds`-th of the
    list. The others are windows that no fit has seen, and only where there are not enough of these some that it has.
    """
    if not isinstance(windows, Windows):
        windows = [example for _, example in zip(range(count + more), windows, strict=False)]
    total = min(count, rounds * len(windows))
    fitted = [n * len(windows) // total for n in range(total)]
    seen = sorted(set(fitted))
    unseen = _evenly(sorted(set(range(len(windows))) - set(seen)), more)
    others = sorted(unseen + _evenly(seen, more - len(unseen)))
    return [windows[n] for n in fitted], [windows[n] for n in others]


def _evenly(numbers: list[int], count: int) -> list[int]:
    """At most `count` of them, spread over all."""
    count = min(count, len(numbers))
    return [numbers[n * len(numbers) // count] for n in range(count)]


def _run(model: Any, windows: Any, held: Any, config: TrainConfig, folder: Path, finetune: bool) -> dict[str, Any]:
    """One stage of the Trainer: the adapter's, or that of all weights."""
    everything = finetune or not config.frozen
    steps = config.finetune_steps if finetune else config.steps
    often = held is not None and config.eval_every > 0
    # only where it is asked for: the name is on its way out
    memory: dict[str, Any] = {"gradient_checkpointing": True} if config.gradient_checkpointing else {}
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=config.batch_size,
        gradient_accumulation_steps=config.accumulate,
        learning_rate=config.finetune_lr if everything else config.lr,
        lr_scheduler_type="linear",
        warmup_steps=max(1, steps // 20),
        adam_beta2=0.95,
        max_grad_norm=1.0,
        logging_steps=1,
        eval_strategy="steps" if often else "no",
        eval_steps=config.eval_every if often else None,
        save_steps=config.save_every,
        save_total_limit=2,
        load_best_model_at_end=bool(config.patience),
        metric_for_best_model="loss" if config.patience else None,
        bf16=config.precision == "bf16",
        fp16=config.precision == "fp16",
        **memory,
        report_to=config.report_to,
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=torch.accelerator.is_available(),
        seed=config.seed,
    )
    if config.patience and config.save_every % config.eval_every:
        raise FocusError(f"save_every {config.save_every} must be a multiple of eval_every {config.eval_every}")
    if everything:
        model.focus.unfreeze()
    trainer = FocusTrainer(
        model,
        arguments,
        objective=config.objective,
        router_lr=config.lr if everything else None,
        train_dataset=windows,
        eval_dataset=held,
        data_collator=default_data_collator,  # given a tokenizer, the Trainer would pad, and edit the model's config
        callbacks=[EarlyStoppingCallback(config.patience)] if config.patience else None,
    )
    try:
        trainer.train(resume_from_checkpoint=True)
    finally:
        if everything and config.frozen:
            model.focus.freeze()
    model.eval()
    found: dict[str, Any] = {"steps": trainer.state.global_step}
    if held is not None:
        last = trainer.evaluate()
        found.update({name.removeprefix("eval_"): value for name, value in last.items() if "/" not in name})
    history = [line for line in trainer.state.log_history if "loss" in line]
    if history:
        found["train_loss"] = history[-1]["loss"]
    return found


def _numbers(results: dict[str, Any]) -> dict[str, float]:
    """What goes on the adapter's card."""
    last: dict[str, Any] = {}
    for stage in results["stages"].values():
        last.update(stage)
    return {name: last[name] for name in ("perplexity", "density", "dominance") if name in last}
