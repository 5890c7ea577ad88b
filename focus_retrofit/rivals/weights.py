"""Methods that change weights instead of attention: LoRA (Hu et al., 2021) by peft, and full fine-tuning. They compute
every pair; what they gain on one text is to be held against what they lose elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from tqdm.auto import tqdm

from focus_kernels import FocusError

PEFT = "LoRA comes in the package peft: pip install peft"


@dataclass
class Trained:
    """Weights that were trained on a text; override `trained_in`."""

    rate: float
    steps: int
    learns: ClassVar[bool] = True
    engine: ClassVar[str] = "full"
    tensors: dict[str, Tensor] = field(default_factory=dict)  # what training made

    @contextmanager
    def trained_in(self, model: Any) -> Iterator[dict[str, Any]]:
        """Inside, the parameters to train by name, in a model that attends fully; afterwards it is as it was."""
        raise NotImplementedError
        yield

    def prepare(self, model: Any, windows: list[Tensor]) -> None:
        """One window [T] a step, in order, again from the first where there are fewer; the rate falls to 0."""
        if not windows:
            raise FocusError(f"{type(self).__name__} needs training text: 0 windows are given")
        training = model.training
        with model.focus.disabled(), self.trained_in(model) as parameters:
            optimizer = torch.optim.AdamW(parameters.values(), self.rate, weight_decay=0.0)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
            model.train()
            with torch.enable_grad():
                for step in tqdm(range(self.steps), desc=f"{self}", unit=" steps", leave=False):
                    ids = windows[step % len(windows)][None].to(model.device)
                    model(ids, labels=ids, use_cache=False).loss.backward()
                    torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                    schedule.step()
            self.tensors = {name: p.detach().clone() for name, p in parameters.items()}
            model.train(training)

    def state(self) -> dict[str, Tensor]:
        return self.tensors

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.tensors = state

    @contextmanager
    def applied(self, model: Any) -> Iterator[None]:
        """Inside, the model attends fully, with the trained weights."""
        if not self.tensors:
            raise FocusError(f"{self} has not been trained: call prepare() with training text")
        with model.focus.disabled(), self.trained_in(model) as parameters, torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(self.tensors[name])
            yield


@dataclass
class LoRA(Trained):
    """On the projections of queries and values, as LoRA's paper does."""

    rank: int = 4

    def __str__(self) -> str:
        return f"LoRA, rank {self.rank}, rate {self.rate:g}"

    @contextmanager
    def trained_in(self, model: Any) -> Iterator[dict[str, Any]]:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError:
            raise FocusError(PEFT) from None
        flags = {name: p.requires_grad for name, p in model.named_parameters()}
        config = LoraConfig(r=self.rank, lora_alpha=2 * self.rank, target_modules=targets(model), task_type="CAUSAL_LM")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            wrapped = get_peft_model(model, config)
        try:
            yield {name: p for name, p in wrapped.named_parameters() if ".lora_" in name}
        finally:
            wrapped.unload()
            vars(model).pop("peft_config", None)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(flags[name])


@dataclass
class FineTuning(Trained):
    """Every weight of the model; routers stay."""

    def __str__(self) -> str:
        return f"full fine-tuning, rate {self.rate:g}"

    @contextmanager
    def trained_in(self, model: Any) -> Iterator[dict[str, Any]]:
        chosen = {name: p for name, p in model.named_parameters() if not name.startswith("focus.")}
        flags = {name: p.requires_grad for name, p in chosen.items()}
        before = {name: p.detach().clone() for name, p in chosen.items()}
        for parameter in chosen.values():
            parameter.requires_grad_(True)
        try:
            yield chosen
        finally:
            for name, parameter in chosen.items():
                parameter.requires_grad_(flags[name])
                parameter.data.copy_(before[name])


def targets(model: Any) -> list[str]:
    """Names of the projections of queries and values in the layers that attend."""
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    for found in (["q_proj", "v_proj"], ["c_attn"], ["query_key_value"], ["qkv_proj"], ["q_lin", "v_lin"]):
        if set(found) <= names:
            return found
    raise FocusError(f"LoRA does not know the projections of {type(model).__name__}: compare on another model")
