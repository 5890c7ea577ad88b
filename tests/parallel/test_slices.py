"""A prompt over 2 and 4 real processes is the prompt on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.run_slices import CASES

ROOT = Path(__file__).parents[2]
RANKS = (2, 4)
DENSE = {"nothing distant", "all in one group", "slices shorter than the sinks"}  # every pair is seen in these cases


def launch(folder: Path, *parts: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.parallel.processes", str(folder), *parts]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slices")
    launch(folder, *(f"slices:{ranks}" for ranks in RANKS))
    return {ranks: json.loads((folder / f"slices-{ranks}.json").read_text()) for ranks in RANKS}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", RANKS)
def test_slices_are_exact(found, ranks, name):
    case, one = CASES[name], found[ranks][name]
    # of these families some parts compute in float32, whatever the model's dtype
    rounding = 1e-6 if case.family in ("Gemma2", "GptOss", "DeepseekV3") else 1e-7 if case.family == "Llama" else 1e-13
    assert one["starts"] == [rank * case.tokens // ranks for rank in range(ranks)]
    assert one["groups"]
    assert max(one["error"], one["last"]) < rounding
    if case.generates:
        assert one["continued"] < rounding and one["same text"]
    if name in DENSE:
        assert one["sparse"] < rounding
    else:
        assert one["sparse"] > 1e-3


@pytest.mark.parametrize("ranks", RANKS)
def test_half_precision_loses_no_more_than_on_one_process(found, ranks):
    one = found[ranks]["half precision"]
    assert one["error"] < 2 * one["alone"]


@pytest.mark.parametrize("ranks", RANKS)
def test_what_is_sent_is_what_the_formula_says(found, ranks):
    sent, expected = found[ranks]["traffic"].values()
    for kind in ("groups", "sinks", "halo"):
        assert sent[kind] == expected[kind]
    for kind in ("queries", "keys", "outputs"):  # a short text, where rows and keys are few
        assert sent[kind] == pytest.approx(expected[kind], rel=0.1)
    assert sent["keys"] == pytest.approx(expected["ring"] / ranks, rel=0.1)  # min(ranks, groups) = ranks
