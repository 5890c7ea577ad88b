"""transformers' Trainer for a retrofitted model: the adapter is what it trains, saves and resumes."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, ProgressCallback, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from focus_kernels import FocusError

from ..adapter import CONFIG, TENSORS, read_adapter
from ..controller import Focus
from .data import IGNORED
from .health import group_health
from .objectives import Objective

STATE = "trainer_state.json"
TEMPERATURE_RATE = 10  # of routers' learning rate: few numbers, of which tenths matter


class FocusTrainer(Trainer):
    """A Trainer whose loss is an `objective`, whose evaluation is the hard routing that will be served, and whose
    checkpoints hold the adapter (with the base model, if that trains too).

    `router_lr`: learning rate of the routers, where it is not that of the arguments (beside base weights that train).
    """

    loss_is_scaled_for_ga = True  # `compute_loss` does it

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        *,
        objective: str = "lm-hard",
        router_lr: float | None = None,
        **options: Any,
    ):
        focus = getattr(model, "focus", None)
        if not isinstance(focus, Focus):
            raise FocusError("this model has no Focus attention yet: call retrofit(model, config) first")
        self.focus, self.router_lr = focus, router_lr
        self.objective: Objective = Objective(objective)
        self.sums: dict[str, Tensor] = {}  # terms of the loss since the last log
        self.logged = 0
        self.health: dict[str, float] | None = None
        self.seen_before: dict[int, Tensor] = {}
        self.checked = False
        if args.gradient_checkpointing:
            if len(self.objective.modes) > 1:
                raise FocusError(
                    f"objective {objective!r} takes two forward passes, which gradient checkpointing cannot tell "
                    "apart: leave out 'lm' or 'lm-hard', or train without gradient checkpointing"
                )
            for name in ("gradient", "activation"):  # its name before transformers 5.23, and since
                setattr(args, f"{name}_checkpointing_kwargs", {"use_reentrant": False})
        args.remove_unused_columns = False
        args.ddp_find_unused_parameters = False  # it would look for them in the model's output; 'mass' is beside it
        super().__init__(model, args, **options)
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        if plugin is not None and not self.trains_base:  # a few numbers that every layer needs: not worth sharding
            plugin.ignored_modules = [focus.routers]
            share_gradients(focus.trainable_parameters())
        for callback in (ProgressCallback, PrinterCallback):
            self.remove_callback(callback)
        if not args.disable_tqdm:
            self.add_callback(Progress)

    @property
    def output(self) -> str:
        """Where checkpoints go."""
        return self.args.output_dir or "trainer_output"

    @property
    def trains_base(self) -> bool:
        """Whether weights of the base model train too."""
        own = {id(p) for p in self.focus.parameters()}
        return any(p.requires_grad for p in self.focus.model.parameters() if id(p) not in own)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        """As the Trainer's; True resumes from the last whole checkpoint, or begins if there is none."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(self.output)
        try:
            return super().train(resume_from_checkpoint, *args, **options)
        finally:
            self.focus.mode, self.focus.watch = "hard", None

    def create_optimizer(self, *args: Any, **options: Any) -> Any:
        """As the Trainer's, with rates of their own for routers, where `router_lr` is given, and for temperatures."""
        optimizer = super().create_optimizer(*args, **options)
        rate = self.args.learning_rate if self.router_lr is None else self.router_lr
        alone = self.focus.config.temperature in ("learned", "heads")  # not where one is read from a token's state
        rates = {
            id(p): rate * (TEMPERATURE_RATE if alone and name.endswith("temperature") else 1)
            for name, p in self.focus.named_parameters()
        }
        groups = []
        for group in optimizer.param_groups:
            own = [rates.get(id(p), group["lr"]) for p in group["params"]]
            for lr in dict.fromkeys(own):
                mine = [p for p, its in zip(group["params"], own, strict=True) if its == lr]
                groups.append({**group, "params": mine, "lr": lr})
        optimizer.param_groups = groups
        return optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | float | None = None,
    ) -> Any:
        """The objective in training; in evaluation the next-token loss of what will be served."""
        if not model.training:
            self.focus.mode = "hard"
            outputs = model(**inputs, use_cache=False)
            return (outputs.loss, outputs) if return_outputs else outputs.loss
        self._check_length(inputs["input_ids"])
        accumulated = self.current_gradient_accumulation_steps
        if num_items_in_batch is None:
            items: Any = (inputs["labels"][:, 1:] != IGNORED).sum().clamp_min(1) * accumulated
        elif self.args.average_tokens_across_devices:  # counted over all processes, whose gradients are averaged
            items = num_items_in_batch / self.accelerator.num_processes
        else:
            items = num_items_in_batch
        loss = self.objective(model, self.focus, inputs, items, accumulated)
        if self.accelerator.num_processes > 1:  # DDP waits for every parameter, and some objectives leave some out
            loss = loss + 0 * sum(p.sum() for p in self.focus.trainable_parameters())
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FocusError(
                f"the loss is {value} at step {self.state.global_step}: try a lower learning rate, or bf16 in "
                f"place of fp16; what was saved until then is untouched in {self.args.output_dir}"
            )
        for term, part in self.objective.values.items():
            self.sums[term] = self.sums.get(term, 0) + part
        return loss

    def _check_length(self, tokens: Tensor) -> None:
        window = self.focus.config.window
        if not self.checked and tokens.shape[1] <= window + 1:
            raise FocusError(
                f"training texts of {tokens.shape[1]} tokens lie within the window of {window}: no pair is decided by "
                "groups, so there is nothing to learn; use a length of several windows"
            )
        self.checked = True

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
        before = self.focus.mode
        found = super().prediction_step(model, inputs, *args, **options)
        self.focus.mode = before
        if self.health is None:  # the first batch of an evaluation is always the same text
            self.health = group_health(self.focus, self.seen_before)
        return found

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """As the Trainer's, and: perplexity, and how the groups are doing."""
        self.health = None  # set by the first batch
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        health: dict[str, float] = self.health or {}
        more = {f"{metric_key_prefix}_{name}": value for name, value in health.items()}
        if f"{metric_key_prefix}_loss" in metrics:
            more[f"{metric_key_prefix}_perplexity"] = math.exp(min(metrics[f"{metric_key_prefix}_loss"], 700))
        self.log(dict(more))
        return {**metrics, **more}

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Adds the terms of the loss, each a mean over the steps since the last time."""
        steps = self.state.global_step - self.logged
        if "loss" in logs and steps > 0:
            logs.update({term: float(value) / steps for term, value in self.sums.items()})
            self.sums, self.logged = {}, self.state.global_step
        super().log(logs, *args, **options)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The adapter needs no gathering of anything; otherwise as the Trainer's."""
        if self.trains_base:
            super().save_model(output_dir, _internal_call)
            return
        if self.args.should_save:
            self._save(output_dir)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Focus adapter")

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """The adapter; with the base model where that trains. The Trainer's own file of arguments is left out."""
        path = Path(output_dir or self.output)
        if self.trains_base:
            self.focus.model.save_pretrained(path, state_dict=state_dict)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(path)
        self.focus.save_pretrained(path)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """All of a checkpoint or nothing of it: what could not be written whole is taken away."""
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError) as error:  # which of them a full disk is depends on the file
            if not (isinstance(error, OSError) or "write" in str(error)):
                raise
            folder = Path(self.output) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            shutil.rmtree(folder, ignore_errors=True)
            last = last_checkpoint(self.output)
            kept = f"the last whole one is {last}" if last else "there is no earlier one"
            raise FocusError(
                f"cannot save a checkpoint in {folder}: {error}; {kept}. Free some space, then resume"
            ) from None

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self.trains_base:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_adapter(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if self.trains_base:
            super()._load_best_model()
        if best is not None:
            self._load_adapter(best)

    def _load_adapter(self, folder: str) -> None:
        config, tensors = read_adapter(self.focus.model, folder)
        if config != self.focus.config:
            raise FocusError(f"the adapter in {folder} was trained with other options than these: {config}")
        self.focus.load_tensors(tensors)


def share_gradients(parameters: list[nn.Parameter]) -> None:
    """Average the gradients of parameters that every process holds whole, beside a model that is sharded."""

    def average(parameter: Tensor) -> None:
        dist = torch.distributed
        if parameter.grad is not None and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(average)


def last_checkpoint(folder: str | Path | None) -> str | None:
    """The newest checkpoint in a folder that was written whole; what a kill left half-written is passed over."""
    if folder is None or not Path(folder).is_dir():
        return None
    found = sorted(Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*"), key=lambda p: int(p.name.rpartition("-")[2]))
    for path in reversed(found):
        if all((path / name).is_file() for name in (CONFIG, TENSORS)) and _is_json(path / STATE):
            return str(path)
    return None


def _is_json(path: Path) -> bool:
    """Is it there, and whole? The Trainer writes it last."""
    try:
        json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return True


class Progress(ProgressCallback):
    """The Trainer's bar with the running perplexity in it; logs go where logs go."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        shown = {}
        for term in ("lm-hard", "lm"):
            if term in logs:
                shown["ppl"] = f"{math.exp(min(logs[term], 700)):.2f}"
        for name, label in (("mass", "mass lost"), ("distill", "distill")):
            if name in logs:
                shown[label] = f"{logs[name]:.3f}"
        if "eval_perplexity" in logs:
            shown["held-out ppl"] = f"{logs['eval_perplexity']:.3f}"
        if "eval_dominance" in logs:
            shown["largest group"] = f"{logs['eval_dominance']:.0%}"
        self.shown = {**getattr(self, "shown", {}), **shown}
        self.training_bar.set_postfix(self.shown)
