"""A prompt over 2 and 4 real processes is the prompt on one."""

from __future__ import annotations

import pytest

from tests.parallel.run_slices import CASES

RANKS = (2, 4)
DENSE = {"nothing distant", "all in one group", "slices shorter than the sinks"}  # every pair is seen in these cases


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
