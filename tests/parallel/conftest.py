"""One launch for all tests of this folder: to load everything takes longer than all that they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("slices:2", "slices:4", "tensor:2", "sharded:2")


@pytest.fixture(scope="session")
def launched(tmp_path_factory):
    """The folder with what the processes found."""
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, "-m", "tests.parallel.processes", str(folder), *PARTS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return folder


@pytest.fixture(scope="session")
def slices(launched):
    return {ranks: json.loads((launched / f"slices-{ranks}.json").read_text()) for ranks in (2, 4)}
