"""`focus-retrofit train`, on a small model in a directory, as a user would call it."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from focus_retrofit import load_adapter
from focus_retrofit.cli import main
from tests.matrix import BY_NAME

from .tiny import texts

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, its tokenizer of letters, and texts as jsonl."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("train")
    BY_NAME["Llama"].make(dtype=torch.float32).save_pretrained(place / "model")
    letters = {"<end>": 0, **{chr(97 + n): n + 1 for n in range(26)}}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(place / "model")
    (place / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(24)))
    return place


def call(*words):
    return CliRunner().invoke(main, ["train", *map(str, words)])


def test_training_from_the_command_line(folder, tmp_path):
    done = call(folder / "model", folder / "data.jsonl", "--output", tmp_path / "run", *SMALL, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert found["stages"]["train"]["steps"] == 2
    assert found["stages"]["train"]["perplexity"] > 1
    adapter = load_adapter(BY_NAME["Llama"].make(dtype=torch.float32), str(tmp_path / "run" / "adapter"))
    assert adapter.focus.config.temperature == "learned"
    again = call(folder / "model", folder / "data.jsonl", "--output", tmp_path / "run", *SMALL)
    assert again.exit_code == 0
    assert "written:" in again.output


def test_one_stage_at_a_time(folder, tmp_path):
    words = [folder / "model", folder / "data.jsonl", "--output", tmp_path / "run", *SMALL, "--no-warm-start"]
    assert call(*words, "--only", "prepare").exit_code == 0
    assert not (tmp_path / "run" / "train").exists()
    assert call(*words).exit_code == 0
    assert (tmp_path / "run" / "train" / "done.json").is_file()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--objective", "ppl"], "objective 'ppl' is not understood"),
        (["--top-k", "9"], "top_k is 9"),
        (["--dtype", "int"], "dtype is 'int'"),
        (["--column", "body"], "no column 'body'"),
        (["--only", "finetune"], "only is 'finetune'"),
    ],
)
def test_mistakes_are_one_line(folder, tmp_path, words, reason):
    done = call(folder / "model", folder / "data.jsonl", "--output", tmp_path / "run", *SMALL, *words)
    assert done.exit_code == 2
    assert reason in done.output
    assert "Traceback" not in done.output


def test_help_lists_every_option():
    from dataclasses import fields

    from focus_retrofit import FocusConfig
    from focus_retrofit.training import TrainConfig

    shown = call("--help").output
    for kind in (FocusConfig, TrainConfig):
        assert all("--" + field.name.replace("_", "-") in shown for field in fields(kind))
