"""Adapters on disk and on the hub: three files, all or nothing, refused with the list of what differs."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from focus_retrofit import FocusConfig, FocusError, load_adapter, retrofit
from focus_retrofit import adapter as adapter_module
from tests.matrix import BY_NAME

LLAMA = BY_NAME["Llama"]
CONFIG = FocusConfig(num_groups=4, top_k=1, window=12)


@pytest.fixture
def saved(tmp_path):
    model = retrofit(LLAMA.make(), CONFIG, seed=1)
    model.config.name_or_path = "someone/tiny-llama"
    return model, model.focus.save_pretrained(tmp_path / "adapter", results={"perplexity": 9.5})


def test_files(saved):
    model, path = saved
    assert sorted(os.listdir(path)) == ["README.md", "focus_adapter.safetensors", "focus_config.json"]
    described = json.loads((path / "focus_config.json").read_text())
    assert described["base_model"] == {
        "name": "someone/tiny-llama",
        "model_type": "llama",
        "hidden_size": 32,
        "num_layers": 3,
        "num_attention_heads": 4,
    }
    assert described["parameters"] == model.focus.num_parameters() == 3 * (32 * 16 + 4 * 16)
    tensors = load_file(path / "focus_adapter.safetensors")
    assert sorted(tensors) == sorted(
        f"layers.{n}.{x}" for n in range(3) for x in ("projection", "centroids", "potentials")
    )


def test_card(saved):
    card = ModelCard.load(saved[1] / "README.md")
    assert card.data.library_name == "focus_retrofit" and card.data.base_model == "someone/tiny-llama"
    assert {"focus-retrofit", "sparse-attention", "llama"} <= set(card.data.tags)
    assert "| perplexity | 9.5 |" in card.text and "1,728 trained parameters in 3 of 3 layers" in card.text
    assert 'load_pretrained("someone/tiny-llama")' in card.text


def test_the_card_of_a_packaged_model_says_how_to_get_it(tmp_path):
    model = retrofit(LLAMA.make(), CONFIG)
    model.config.name_or_path = "SmolLM2-135M-Instruct.Q4_1"
    card = (model.focus.save_pretrained(tmp_path) / "README.md").read_text()
    assert 'load_pretrained("smollm2-135m")' in card and "# Focus adapter for SmolLM2-135M-Instruct.Q4_1" in card


def test_the_config_may_be_edited(saved):
    path = saved[1]
    described = json.loads((path / "focus_config.json").read_text())
    described["config"].update(top_k=2, window=20)
    (path / "focus_config.json").write_text(json.dumps(described))
    config = load_adapter(LLAMA.make(), path).focus.config
    assert (config.top_k, config.window) == (2, 20)


def test_a_crash_between_the_files_leaves_a_whole_adapter(saved, monkeypatch):
    path = saved[1]
    before = load_adapter(LLAMA.make(), path).focus.tensors()
    other = retrofit(LLAMA.make(), FocusConfig(num_groups=8, top_k=1, window=12), seed=9)
    real = adapter_module.write_atomically
    for stop in ("focus_adapter.safetensors", "focus_config.json"):

        def crash(target, content, stop=stop):
            if target.name == stop:
                raise KeyboardInterrupt
            real(target, content)

        monkeypatch.setattr(adapter_module, "write_atomically", crash)
        with pytest.raises(KeyboardInterrupt):
            other.focus.save_pretrained(path)
        monkeypatch.setattr(adapter_module, "write_atomically", real)
        again = load_adapter(LLAMA.make(), path).focus
        wanted = before if stop == "focus_adapter.safetensors" else other.focus.tensors()
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in again.tensors().items())
    assert not [name for name in os.listdir(path) if name.startswith(".")]


@pytest.mark.parametrize("size", [0, 7, 100, 4000])
def test_a_truncated_file_is_a_clear_error(saved, size):
    file = saved[1] / "focus_adapter.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(FocusError, match="damaged, or not a safetensors file"):
        load_adapter(LLAMA.make(), saved[1])


def test_foreign_files(saved):
    path = saved[1]
    (path / "focus_adapter.safetensors").write_bytes(pickle.dumps({"layers.0.projection": [1.0]}))
    with pytest.raises(FocusError, match="not a safetensors file"):
        load_adapter(LLAMA.make(), path)
    save_file({"weight": torch.ones(2)}, path / "focus_adapter.safetensors")
    with pytest.raises(FocusError, match="do not describe one"):
        load_adapter(LLAMA.make(), path)
    (path / "focus_config.json").unlink()
    with pytest.raises(FocusError, match=r"it has no focus_config\.json"):
        load_adapter(LLAMA.make(), path)


def test_another_model_is_refused_with_all_that_differs(saved):
    other = BY_NAME["Qwen2"].make(hidden_size=64, num_hidden_layers=2)
    with pytest.raises(FocusError) as error:
        load_adapter(other, saved[1])
    for part in ("model_type 'llama'", "hidden_size 32 in the adapter, 64 in the model", "num_layers 3"):
        assert part in str(error.value)
    assert not hasattr(other, "focus")


def edit(path, **changes):
    described = json.loads((path / "focus_config.json").read_text())
    described.update(changes)
    (path / "focus_config.json").write_text(json.dumps(described))


def test_versions(saved):
    path = saved[1]
    edit(path, format=99, focus_version="7.0")
    with pytest.raises(FocusError, match=r"format 99.*7\.0.*upgrade"):
        load_adapter(LLAMA.make(), path)
    config = json.loads((path / "focus_config.json").read_text())["config"]
    edit(path, format=1, config={**config, "novelty": 1})
    with pytest.warns(UserWarning, match="novelty"):
        load_adapter(LLAMA.make(), path)
    edit(path, config={**config, "group_dim": 8})
    model = LLAMA.make()
    with pytest.raises(FocusError, match=r"layers.0.projection is \[32, 16\], the model wants \[32, 8\]"):
        load_adapter(model, path)
    assert not hasattr(model, "focus")


def test_places_that_are_no_adapter(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "file").write_text("x")
    for source, message in (
        (tmp_path / "file", "is a file"),
        (tmp_path, "has no focus_config.json"),
        (tmp_path / "a" / "b" / "c", "neither a directory nor a name on the hub"),
        ("someone/nothing", "the hub did not give it"),
    ):
        with pytest.raises(FocusError, match=message):
            load_adapter(LLAMA.make(), source)
    model = retrofit(LLAMA.make(), CONFIG)
    with pytest.raises(FocusError, match="is a file"):
        model.focus.save_pretrained(tmp_path / "file")


def test_download_from_the_hub(saved, tmp_path):
    """huggingface_hub's own cache stands in for the network."""
    model, path = saved
    snapshot = tmp_path / "hub" / "models--someone--adapter" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("0" * 40)
    for file in path.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    again = load_adapter(LLAMA.make(), "someone/adapter", cache_dir=tmp_path / "hub", local_files_only=True)
    for name, tensor in model.focus.tensors().items():
        assert torch.equal(tensor, again.focus.tensors()[name])


def test_upload_to_the_hub(saved, monkeypatch):
    import huggingface_hub

    sent = {}

    class Api:
        def create_repo(self, name, **options):
            return huggingface_hub.RepoUrl(f"https://huggingface.co/{name}")

        def upload_folder(self, repo_id, folder_path, **options):
            sent[repo_id] = sorted(os.listdir(folder_path))

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    assert saved[0].focus.push_to_hub("someone/adapter").endswith("someone/adapter")
    assert sent == {"someone/adapter": ["README.md", "focus_adapter.safetensors", "focus_config.json"]}


def test_no_pickle_anywhere():
    root = Path(adapter_module.__file__).parent
    for file in root.rglob("*.py"):
        text = file.read_text()
        assert "pickle" not in text and "torch.load" not in text and "torch.save" not in text, file
