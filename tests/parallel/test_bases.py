"""A base spread over two real processes, by heads (tensor parallel) or by shards (FSDP2), is the base on one."""

from __future__ import annotations

import json

import pytest

from tests.parallel.run_tensor import FAMILIES


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
