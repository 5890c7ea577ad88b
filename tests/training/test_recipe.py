"""`train`: stages that resume, what they leave behind, and the ways beyond a frozen base."""

from __future__ import annotations

import json

import pytest
import torch

from focus_kernels import FocusError
from focus_retrofit import FocusConfig, load_adapter, retrofit
from focus_retrofit.training import TrainConfig, train
from focus_retrofit.training.recipe import _first
from tests.matrix import BY_NAME

from .tiny import CONFIG, LetterTokenizer, model, texts, windows

SMALL = {"length": 48, "fit_windows": 6, "fit_steps": 10, "steps": 4, "save_every": 2, "eval_every": 2, "lr": 1e-2}


def run(folder, retrofitted=None, **changes):
    retrofitted = model() if retrofitted is None else retrofitted
    config = TrainConfig(**{**SMALL, **changes})
    found = train(retrofitted, LetterTokenizer(), texts(), folder, held_out=texts(3), config=config)
    return retrofitted, found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fit": "mass"},
        {"fit": "none"},
        {"warm_start": False, "fit": "none", "objective": "lm"},
        {"steps": 0},
        {"documents": "joined", "patience": 2},
        {"precision": "bf16", "gradient_checkpointing": True, "accumulate": 2},
    ],
    ids=str,
)
def test_a_run_ends_in_an_adapter(tmp_path, changes):
    base = BY_NAME["Llama"].make(dtype=torch.float32)
    retrofitted, found = run(tmp_path, retrofit(base, CONFIG), **changes)
    again = load_adapter(BY_NAME["Llama"].make(dtype=torch.float32), str(tmp_path / "adapter"))
    for name, tensor in retrofitted.focus.tensors().items():
        assert torch.equal(again.focus.tensors()[name], tensor)
    if changes.get("steps", 1):
        assert found["stages"]["train"]["perplexity"] > 1
        card = (tmp_path / "adapter" / "README.md").read_text()
        assert "perplexity" in card
    assert not (tmp_path / "model").exists()


def test_a_finished_run_is_not_run_again_and_an_unfinished_one_goes_on(tmp_path):
    retrofitted, first = run(tmp_path / "whole")
    other, again = run(tmp_path / "whole")
    assert again["stages"] == first["stages"]
    assert all(torch.equal(a, retrofitted.focus.tensors()[n]) for n, a in other.focus.tensors().items())
    cut, _ = run(tmp_path / "cut", steps=4)
    (tmp_path / "cut" / "train" / "done.json").unlink()
    (tmp_path / "cut" / "train" / "checkpoint-4" / "trainer_state.json").unlink()  # as if killed in its last save
    resumed, _ = run(tmp_path / "cut", steps=4)
    assert all(torch.equal(a, cut.focus.tensors()[n]) for n, a in resumed.focus.tensors().items())


def test_a_folder_belongs_to_one_set_of_options(tmp_path):
    run(tmp_path, steps=0)
    with pytest.raises(FocusError, match=r"lr 0.01 -> 0.5"):
        run(tmp_path, steps=0, lr=0.5)


def test_two_phases_train_centroids_then_all(tmp_path):
    base = BY_NAME["Llama"].make()
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    retrofitted, found = run(tmp_path, retrofit(base, CONFIG), finetune_steps=3, finetune_lr=1e-3)
    assert found["stages"]["finetune"]["steps"] == 3
    after = retrofitted.state_dict()
    assert not any(torch.equal(after[name], tensor) for name, tensor in before.items() if "layers" in name)
    assert not any(p.requires_grad for n, p in retrofitted.named_parameters() if not n.startswith("focus."))
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float64)
    again = load_adapter(loaded, str(tmp_path / "adapter")).eval()
    ids = torch.arange(1, 41)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, retrofitted.eval()(ids).logits)


def test_from_scratch_all_weights_learn_with_the_groups(tmp_path):
    short = {"steps": 25, "eval_every": 0, "save_every": 100, "batch_size": 4, "fit": "none"}
    _, found = run(tmp_path, frozen=False, finetune_lr=1e-2, lr=1e-3, **short)
    assert found["stages"]["train"]["perplexity"] < 60  # of a vocabulary of 96, of which the text has 27
    assert json.loads((tmp_path / "train" / "done.json").read_text())["steps"] == 25
    assert (tmp_path / "model").is_dir()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"length": 9}, "nothing to learn"),
        ({"length": 0}, "length is 0"),
        ({"lr": 0.0}, "lr is 0"),
        ({"objective": "ppl"}, "is not understood"),
        ({"fit": "all"}, "fit is 'all'"),
        ({"fit_trust": 1.5}, "fit_trust is 1.5"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"patience": 3, "eval_every": 0}, "patience counts"),
        ({"steps": -1}, "steps is -1"),
    ],
)
def test_options_that_cannot_be(tmp_path, changes, reason):
    with pytest.raises(FocusError, match=reason):
        run(tmp_path, **changes)


def test_unknown_options_are_named():
    with pytest.raises(FocusError, match="unknown training options speed"):
        TrainConfig.from_dict({"speed": 1})


def test_a_plain_model_is_refused(tmp_path):
    with pytest.raises(FocusError, match="call retrofit"):
        train(BY_NAME["Llama"].make(), LetterTokenizer(), texts(), tmp_path)


def test_every_option_has_help():
    from dataclasses import fields

    assert all(field.metadata["help"] for kind in (TrainConfig, FocusConfig) for field in fields(kind))


@pytest.mark.parametrize("count, rounds", [(5, 2), (20, 2), (40, 3), (1000, 3)])
def test_windows_to_fit_on_are_spread_and_read_once_a_round_at_most(count, rounds):
    data = windows()
    picked = [example["input_ids"].tolist() for example in _first(data, count, rounds)[0]]
    known = [data[n]["input_ids"].tolist() for n in range(len(data))]
    assert len(picked) == min(count, rounds * len(data))
    assert len({tuple(x) for x in picked}) == min(count, len(data))
    assert [known.index(x) for x in picked] == sorted(known.index(x) for x in picked)
    for number in range(rounds):
        part = [tuple(x) for x in picked[number::rounds]]
        assert len(part) == len(set(part))
    few, none = _first(iter([data[0], data[1], data[2]]), 2, 1)
    assert [x["input_ids"].tolist() for x in few] == known[:2]
    assert none == []


@pytest.mark.parametrize("count, more", [(5, 4), (5, 100), (1000, 4)])
@pytest.mark.parametrize("streamed", [False, True])
def test_windows_to_spread_on_are_others_as_far_as_there_are(count, more, streamed):
    data = windows()
    known = [data[n]["input_ids"].tolist() for n in range(len(data))]
    source = iter([data[n] for n in range(len(data))]) if streamed else data
    fitted, others = ([known.index(x["input_ids"].tolist()) for x in part] for part in _first(source, count, 1, more))
    assert len(fitted) == min(count, len(data))
    assert len(others) == len(set(others)) == min(more, len(data))
    assert len(set(others) - set(fitted)) == min(more, len(data) - len(fitted))
