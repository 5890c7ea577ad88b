"""How to train, as checked options; imports nothing heavy, so that a command line can list them at once."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Any

from focus_kernels.errors import FocusError

from ..config import option

WEIGHTS = ("gain", "sensitivity", "mass")  # of pairs, to fit routers to
TERMS = {
    "lm": "next-token loss through the soft gate (dense; the paper's)",
    "lm-hard": "next-token loss of the hard routing that will be served, gradient straight through",
    "mass": "share of full attention's weights that groups lose, layer by layer, no backward through the model",
    "balance": "how uneven groups are with the saved potentials, by what that costs: a weight beside the others",
    "distill": "divergence from the base model's predictions, of the hard routing (or the soft, beside 'lm')",
}


def parse_objective(text: str) -> dict[str, float]:
    """'lm-hard + 0.5*distill' -> {'lm-hard': 1.0, 'distill': 0.5}"""
    found: dict[str, float] = {}
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(?:([0-9.eE-]+)\s*\*\s*)?([a-z-]+)\s*", part)
        try:
            weight = float(match[1] or 1) if match else 0.0
        except ValueError:
            weight = 0.0
        if match is None or match[2] not in TERMS or match[2] in found or not weight > 0:
            raise FocusError(
                f"objective {text!r} is not understood at {part.strip()!r}; sum up some of {', '.join(TERMS)}, each "
                "once, with weights where they differ from 1: 'lm-hard + 0.5*distill'"
            )
        found[match[2]] = weight
    return found


@dataclass
class TrainConfig:
    """How to train: three stages, each of which can be left out. The defaults are the best recipe found so far."""

    length: int = option(1024, "tokens of a training window; several times the Focus window")
    batch_size: int = option(1, "windows per step and process")
    accumulate: int = option(1, "batches per step")
    documents: str = option("apart", "'apart': packed documents do not see each other; 'joined': one running text")
    warm_start: bool = option(False, "begin with PCA and k-means of hidden states, not with random routers")
    fit: str = option(
        "gain",
        "fit routers layer by layer to weights of pairs: 'gain' (what predictions win by a pair), "
        "'sensitivity' (of the loss to it), 'mass' (of attention), or 'none'",
    )
    fit_windows: int = option(100, "windows of text to fit on, all rounds together; each is read once a round at most")
    fit_rounds: int = option(1, "times that routers are fitted, to text read with those of the round before ('gain')")
    fit_trust: float = option(
        0.4,
        "share of the base model's predictions in what 'gain' takes for right, beside the text's own next tokens: more "
        "of it learns less of what is peculiar to this text, and less of its chance",
    )
    fit_steps: int = option(400, "steps of the fit, for each layer and round")
    fit_lr: float = option(5e-3, "learning rate of the fit")
    fit_decay: float = option(1.0, "weight decay of the fit, as AdamW's")
    fit_balance: float = option(0.3, "weight of 'balance' in the fit")
    fit_starts: int = option(8, "routers that are fitted side by side in each layer, of which the best stays")
    spread_windows: int = option(
        16,
        "windows to read after a fit to 'gain' or 'sensitivity', others than it saw, to tell in which layers queries "
        "look into more groups and in which into fewer than top_k (beyond 1); 0: the same in all",
    )
    objective: str = option(
        "lm-hard + 0.3*balance", "what the trainer minimises: a sum of 'lm', 'lm-hard', 'mass', 'distill', 'balance'"
    )
    steps: int = option(40, "steps of the trainer; 0 leaves it out")
    lr: float = option(7e-4, "learning rate of routers; ten times it for learned temperatures")
    finetune_steps: int = option(0, "steps that train all weights afterwards (two-phase fine-tuning)")
    finetune_lr: float = option(2e-5, "learning rate of the base model's weights, wherever they train")
    frozen: bool = option(True, "leave the base model as it is; False trains all weights from the first step")
    eval_every: int = option(50, "steps between evaluations on held-out text; 0: only at the end")
    save_every: int = option(50, "steps between checkpoints")
    patience: int = option(0, "evaluations without improvement after which training stops; 0: never")
    precision: str = option("fp32", "'fp32', 'bf16' or 'fp16' (mixed, on devices that have it)")
    gradient_checkpointing: bool = option(False, "compute activations again in the backward, to save memory")
    report_to: str = option("none", "where the Trainer logs: 'none', 'tensorboard', 'wandb', ...")
    seed: int = option(0, "of everything drawn")

    def __post_init__(self) -> None:
        for name in (
            "length",
            "batch_size",
            "accumulate",
            "fit_windows",
            "fit_rounds",
            "fit_steps",
            "fit_starts",
            "save_every",
        ):
            if getattr(self, name) < 1:
                raise FocusError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("spread_windows", "steps", "finetune_steps", "eval_every", "patience", "fit_balance", "fit_decay"):
            if getattr(self, name) < 0:
                raise FocusError(f"{name} is {getattr(self, name)}; it must not be negative")
        if not 0 <= self.fit_trust <= 1:
            raise FocusError(f"fit_trust is {self.fit_trust}; it must be within 0..1")
        for name in ("lr", "fit_lr", "finetune_lr"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise FocusError(f"{name} is {getattr(self, name)}; it must be a positive number")
        for name, choices in (
            ("fit", (*WEIGHTS, "none")),
            ("documents", ("apart", "joined")),
            ("precision", ("fp32", "bf16", "fp16")),
        ):
            if getattr(self, name) not in choices:
                raise FocusError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(map(repr, choices))}")
        if self.patience and not self.eval_every:
            raise FocusError("patience counts evaluations: set eval_every too")
        parse_objective(self.objective)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        unknown = sorted(set(values) - {f.name for f in fields(cls)})
        if unknown:
            raise FocusError(f"unknown training options {', '.join(unknown)}; known: {[f.name for f in fields(cls)]}")
        return cls(**values)
