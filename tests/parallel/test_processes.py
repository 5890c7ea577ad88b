"""Over real processes as on one: a prompt over 2 and 4, a base spread by heads (tensor parallel) or shards (FSDP2).

All in one file, and from one launch: to load everything takes longer than all that is run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.run_slices import CASES
from tests.parallel.run_tensor import FAMILIES

ROOT = Path(__file__).parents[2]
PARTS = ("slices:2", "slices:4", "tensor:2", "sharded:2")
RANKS = (2, 4)
DENSE = {"nothing distant", "all in one group", "slices shorter than the sinks"}  # every pair is seen in these cases


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """The folder with what the processes found."""
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, "-m", "tests.parallel.processes", str(folder), *PARTS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return folder


@pytest.fixture(scope="module")
def slices(launched):
    return {ranks: json.loads((launched / f"slices-{ranks}.json").read_text()) for ranks in (2, 4)}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", RANKS)
def test_slices_are_exact(slices, ranks, name):
    case, one = CASES[name], slices[ranks][name]
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
def test_half_precision_loses_no_more_than_on_one_process(slices, ranks):
    one = slices[ranks]["half precision"]
    assert one["error"] < 2 * one["alone"]


@pytest.mark.parametrize("ranks", RANKS)
def test_what_is_sent_is_what_the_formula_says(slices, ranks):
    sent, expected = slices[ranks]["traffic"].values()
    for kind in ("groups", "sinks", "halo"):
        assert sent[kind] == expected[kind]
    for kind in ("queries", "keys", "outputs"):  # a short text, where rows and keys are few
        assert sent[kind] == pytest.approx(expected[kind], rel=0.1)
    assert sent["keys"] == pytest.approx(expected["ring"] / ranks, rel=0.1)  # min(ranks, groups) = ranks


@pytest.fixture(params=[0, 1], ids=["rank 0", "rank 1"])
def rank(request):
    return request.param


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_over_ranks(launched, rank, family):
    found = json.loads((launched / f"tensor-{rank}.json").read_text())[family]
    assert found["sharded"] > 20  # projections of three layers, and the head
    assert found["error"] < 1e-6 < 1e-3 < found["sparse"]
    assert found["same text"]
    assert max(found["lm-hard"], found["mass"]) < 1e-5  # gradients of the routers, which are in float32


@pytest.mark.parametrize("how", ["by_hand", "by_transformers"])
def test_shards_over_ranks(launched, rank, how):
    found = json.loads((launched / f"sharded-{rank}.json").read_text())[how]
    assert found["sharded"] and found["same text"]
    assert found["error"] < 1e-6
    assert found["trained"] < 1e-6 < 1e-3 < found["moved"]  # a step's adapter, saved and loaded again
