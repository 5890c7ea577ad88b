"""Training runs of the tiny model as their own process: killed on the way, or one of several.

python -m tests.training.run_tiny OUTPUT STEPS BATCH [--die STEP] [--objective lm-hard ...] [--finetune]
With several objectives there is a run of each, in OUTPUT/0, OUTPUT/1, ...: loading everything takes longer than a run.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainingArguments

from focus_retrofit.training import FocusTrainer

from .tiny import leave, model, windows


class Die(TrainerCallback):
    """Ends the process as a kill does: nothing is cleaned up."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("batch", type=int)
    parser.add_argument("--die", type=int)
    parser.add_argument("--objective", action="append")
    parser.add_argument("--finetune", action="store_true")
    options = parser.parse_args(argv)
    objectives = options.objective or ["lm-hard"]
    for number, objective in enumerate(objectives):
        run(objective, options.output / str(number) if len(objectives) > 1 else options.output, options)
    leave()


def run(objective: str, output: Path, options: argparse.Namespace) -> None:
    retrofitted = model()
    if options.finetune:
        retrofitted.focus.unfreeze()
    arguments = TrainingArguments(
        str(output),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    )
    trainer = FocusTrainer(
        retrofitted,
        arguments,
        objective=objective,
        train_dataset=windows(),
        callbacks=[Die(options.die)] if options.die else None,
    )
    trainer.train(resume_from_checkpoint=True)
    if trainer.is_world_process_zero():
        tensors = dict(retrofitted.focus.tensors())
        if options.finetune:
            tensors.update({f"base.{n}": x for n, x in retrofitted.state_dict().items() if n != "lm_head.weight"})
        save_file({n: x.contiguous().clone() for n, x in tensors.items()}, output / "end.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
