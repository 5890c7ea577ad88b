"""`focus-retrofit train`, on a small model in a directory, as a user would call it."""

from __future__ import annotations

import json

import pytest
import torch

from focus_retrofit import load_adapter
from tests.matrix import BY_NAME

from .conftest import call

OPTIONS = {
    "length": 48,
    "window": 8,
    "sinks": 2,
    "num-groups": 4,
    "top-k": 1,
    "fit-windows": 4,
    "fit-steps": 5,
    "steps": 2,
    "lr": 1e-2,
    "temperature": "learned",
    "eval-every": 0,
}
SMALL = [word for name, value in OPTIONS.items() for word in ("--" + name, value)]


def train(*words):
    return call("train", *words)


def test_training_from_the_command_line(folder, tmp_path):
    done = train(folder / "model", folder / "data.jsonl", "--output", tmp_path / "run", *SMALL, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["stages"]["train"]["steps"] == 2
    assert found["stages"]["train"]["perplexity"] > 1
    adapter = load_adapter(BY_NAME["Llama"].make(dtype=torch.float32), str(tmp_path / "run" / "adapter"))
    assert adapter.focus.config.temperature == "learned"
    again = train(folder / "model", folder / "data.jsonl", "--output", tmp_path / "run", *SMALL)
    assert again.exit_code == 0
    assert "written:" in again.output


def test_one_stage_at_a_time(folder, tmp_path):
    words = [folder / "model", folder / "data.jsonl", "--output", tmp_path / "run", *SMALL, "--no-warm-start"]
    assert train(*words, "--only", "prepare").exit_code == 0
    assert not (tmp_path / "run" / "train").exists()
    assert train(*words).exit_code == 0
    assert (tmp_path / "run" / "train" / "done.json").is_file()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--objective", "ppl"], "objective 'ppl' is not understood"),
        (["--top-k", "9"], "top_k is 9"),
        (["--dtype", "int"], "'int' is not one of"),
        (["--column", "body"], "no column 'body'"),
        (["--only", "finetune"], "only is 'finetune'"),
    ],
)
def test_mistakes_are_one_line(folder, tmp_path, words, reason):
    done = train(folder / "model", folder / "data.jsonl", "--output", tmp_path / "run", *SMALL, *words)
    assert done.exit_code == 2
    assert reason in done.output
    assert "Traceback" not in done.output


def test_help_lists_every_option():
    from dataclasses import fields

    from focus_retrofit import FocusConfig
    from focus_retrofit.training import TrainConfig

    shown = train("--help").output
    for kind in (FocusConfig, TrainConfig):
        assert all("--" + field.name.replace("_", "-") in shown for field in fields(kind))


def test_a_file_of_options_and_flags_that_win(folder, tmp_path):
    import yaml

    options = {**{name.replace("-", "_"): value for name, value in OPTIONS.items()}, "layers": [0, 2], "steps": 0}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**options, "output": str(tmp_path / "run"), "top_k": 3}))
    done = train(folder / "model", folder / "data.jsonl", "--config", tmp_path / "run.yaml", "--top-k", 2)
    assert done.exit_code == 0, done.output
    adapter = load_adapter(BY_NAME["Llama"].make(dtype=torch.float32), str(tmp_path / "run" / "adapter"))
    assert adapter.focus.config.top_k == 2
    assert adapter.focus.layer_indices == [0, 2]
    assert adapter.focus.config.window == 8


@pytest.mark.parametrize(
    ("content", "reason"),
    [("groups: 4", "options that this command does not: groups"), ("- 1", "options by name"), ("{", "not YAML")],
)
def test_mistakes_in_a_file_of_options(folder, tmp_path, content, reason):
    (tmp_path / "run.yaml").write_text(content)
    done = train(folder / "model", folder / "data.jsonl", "--output", tmp_path, "--config", tmp_path / "run.yaml")
    assert done.exit_code == 2
    assert reason in done.output
    assert len(done.output.strip().splitlines()) == 1
