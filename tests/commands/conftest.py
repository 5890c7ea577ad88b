"""A small real model in a directory, with a tokenizer of letters that can chat, an adapter and texts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner, Result

from focus_retrofit import retrofit
from focus_retrofit.cli import main
from tests.matrix import BY_NAME
from tests.training.tiny import CONFIG, texts

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}{{ m['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


def call(*words: object, **options: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], **options)


def save_tokenizer(place: Path) -> None:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {"<end>": 0, **{chr(97 + n): n + 1 for n in range(26)}, " ": 27, "\n": 28}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", chat_template=TEMPLATE)
    fast.save_pretrained(place)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model/, adapter/, data.jsonl and text.txt."""
    place = tmp_path_factory.mktemp("commands")
    model = BY_NAME["Llama"].make(dtype=torch.float32)
    model.save_pretrained(place / "model")
    save_tokenizer(place / "model")
    (place / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(24)))
    (place / "text.txt").write_text("\n".join(texts(8)))
    retrofit(model, CONFIG)
    ids = [[28 if letter == "\n" else ord(letter) - 96 for letter in "\n".join(texts(8))]]
    model.focus.balance(torch.tensor(ids)[:, :96])
    model.focus.save_pretrained(place / "adapter", results={"perplexity": 12.5})
    return place


@pytest.fixture
def small(folder: Path) -> SimpleNamespace:
    """The words that name the model with its adapter, and a text."""
    return SimpleNamespace(
        model=[folder / "model", "--adapter", folder / "adapter"], text=folder / "text.txt", folder=folder
    )
