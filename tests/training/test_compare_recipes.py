"""The script that compares recipes: each of them runs, and leaves the model as it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.matrix import BY_NAME

from .tiny import LetterTokenizer, windows

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import compare_recipes

FIT = {"fit_windows": 2, "fit_steps": 2, "seed": 0}


@pytest.mark.parametrize("name", compare_recipes.ALL)
def test_every_recipe_runs_and_leaves_the_base(name, monkeypatch):
    recipe = {**compare_recipes.ALL[name]}
    monkeypatch.setitem(compare_recipes.ALL, name, {**recipe, **({"steps": 1} if "steps" in recipe else {})})
    for config in (compare_recipes.CONFIG, compare_recipes.SPREAD):
        monkeypatch.setitem(config, "window", 8)
    base, data = BY_NAME["Llama"].make(), windows()
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    found = compare_recipes.measure(base, LetterTokenizer(), data, [data[0]["input_ids"]], name, FIT)
    assert found["perplexity"] > 1 and 0 < found["distant"] < 1
    assert (found["minutes"] > 0) == (name != compare_recipes.RANDOM)
    assert not hasattr(base, "focus")
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())


def test_losses_are_paired_by_window():
    found = compare_recipes.paired([2.1, 3.3], [2.0, 3.0])
    assert found["over"] == pytest.approx(0.2) and found["over_error"] == pytest.approx(0.1)
