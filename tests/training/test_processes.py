"""Runs in processes of their own: killed and resumed, and two with `accelerate launch` beside one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from . import run_sharded, run_tiny

ROOT = Path(__file__).parents[2]
OBJECTIVES = ["lm-hard + 0.3*balance", "mass", "lm + lm-hard + 0.1*distill"]


def launch(*command, code=0):
    settings = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "TESTED_WITHOUT_PEFT": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture
def here():
    """A run in this process, on one thread like the others; starting one takes ten times as long as what it runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(*arguments):
        run_tiny.main([*map(str, arguments)])
        return load_file(Path(arguments[0]) / "end.safetensors")

    yield run
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """What two processes found for each objective, from one launch. `--multi_gpu` is how accelerate says several
    processes; ACCELERATE_USE_CPU makes them CPU ones, over gloo."""
    folder = tmp_path_factory.mktemp("two")
    sizes = ["--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"]
    options = ["--multi_gpu", *sizes, "--mixed_precision", "no", "--dynamo_backend", "no"]
    accelerate = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", *options]
    asked = [part for objective in OBJECTIVES for part in ("--objective", objective)]
    launch(*accelerate, "-m", "tests.training.run_tiny", str(folder), "4", "2", *asked)
    return {name: load_file(folder / str(n) / "end.safetensors") for n, name in enumerate(OBJECTIVES)}


@pytest.mark.parametrize("more", [[], ["--finetune"]], ids=["adapter", "all weights"])
def test_a_killed_run_resumes_exactly(here, tmp_path, more):
    straight = here(tmp_path / "straight", 7, 2, *more)
    killed = [str(tmp_path / "killed"), "7", "2", "--die", "5", *more]
    launch(sys.executable, "-m", "tests.training.run_tiny", *killed, code=-signal.SIGKILL)
    names = {path.name for path in (tmp_path / "killed").iterdir()}
    assert "checkpoint-4" in names and "end.safetensors" not in names
    (tmp_path / "killed" / "checkpoint-6").mkdir()  # as a kill during a save leaves it
    resumed = here(tmp_path / "killed", 7, 2, *more)
    assert straight.keys() == resumed.keys()
    for name, tensor in straight.items():
        assert torch.equal(tensor, resumed[name]), name


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_two_processes_are_one_with_twice_the_batch(here, on_two, tmp_path, objective):
    one, two = here(tmp_path, 4, 4, "--objective", objective), on_two[objective]
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=1e-5, rtol=1e-4, msg=name)


def test_a_sharded_base_gives_the_routers_the_same_gradients(tmp_path):
    objective, output = "lm-hard + mass", tmp_path / "two.safetensors"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch(*torchrun, "-m", "tests.training.run_sharded", str(output), objective)
    one, two = run_sharded.gradients(objective), load_file(output)
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=1e-6, rtol=1e-4, msg=name)
