"""Several adapters for one base: switched by name, without touching the base or each other."""

from __future__ import annotations

import pytest
import torch

from focus_kernels import FocusError
from focus_retrofit import FocusConfig, load_adapter, retrofit
from tests.matrix import BY_NAME

from .tiny import CONFIG, model

IDS = torch.randint(1, 27, (2, 60), generator=torch.Generator().manual_seed(2))


def logits(retrofitted):
    with torch.no_grad():
        return retrofitted.eval()(IDS, use_cache=False).logits


@pytest.fixture
def saved(tmp_path):
    """Two adapters on disk, of different shapes and layers, and what each computes."""
    found = {}
    for name, config in (
        ("law", CONFIG),
        ("code", FocusConfig(num_groups=3, top_k=2, window=12, sinks=1, layers=[0, 2])),
    ):
        retrofitted = retrofit(BY_NAME["Llama"].make(), config, seed=len(found) + 5)
        retrofitted.focus.balance(IDS)
        retrofitted.focus.save_pretrained(tmp_path / name)
        found[name] = (str(tmp_path / name), logits(retrofitted))
    return found


def test_switching_by_name(saved):
    retrofitted = load_adapter(BY_NAME["Llama"].make(), saved["law"][0])
    base = [(p.data_ptr(), p.requires_grad) for n, p in retrofitted.named_parameters() if not n.startswith("focus.")]
    retrofitted.focus.add_adapter("code", saved["code"][0])
    assert retrofitted.focus.adapters == ["default", "code"]
    for name, key in (("code", "code"), ("default", "law"), ("code", "code")):
        retrofitted.focus.set_adapter(name)
        assert torch.equal(logits(retrofitted), saved[key][1])
        assert retrofitted.focus.adapters[0] == name
    assert base == [
        (p.data_ptr(), p.requires_grad) for n, p in retrofitted.named_parameters() if not n.startswith("focus.")
    ]
    with torch.no_grad(), retrofitted.focus.disabled():
        dense = retrofitted(IDS, use_cache=False).logits
    assert torch.equal(dense, logits(BY_NAME["Llama"].make()))
    assert retrofitted.focus.unload() is retrofitted
    assert torch.equal(logits(retrofitted), dense)


def test_an_adapter_saved_from_a_switched_model_is_the_one_at_work(saved, tmp_path):
    retrofitted = load_adapter(BY_NAME["Llama"].make(), saved["law"][0])
    retrofitted.focus.add_adapter("code", saved["code"][0])
    retrofitted.focus.set_adapter("code")
    retrofitted.focus.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load_adapter(BY_NAME["Llama"].make(), str(tmp_path / "again"))), saved["code"][1])


def test_only_the_adapter_at_work_trains():
    retrofitted = model()
    retrofitted.focus.add_adapter("new", FocusConfig(num_groups=2, top_k=1, window=8, sinks=2), seed=3)
    assert retrofitted.focus.num_parameters() == sum(p.numel() for p in retrofitted.focus.routers.parameters())
    retrofitted.focus.set_adapter("new")
    names = [name for name, p in retrofitted.named_parameters() if p.requires_grad]
    assert len(names) == 2 * len(retrofitted.focus.layer_indices)  # no temperature in this one


def test_generation_with_each_and_no_cache_shared(saved):
    retrofitted = load_adapter(BY_NAME["Llama"].make(), saved["law"][0]).eval()
    retrofitted.focus.add_adapter("code", saved["code"][0])
    cache = retrofitted.focus.new_cache()
    with torch.no_grad():
        retrofitted(IDS, past_key_values=cache)
        retrofitted.focus.set_adapter("code")
        out = retrofitted.generate(IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=3, do_sample=False)
        assert out.shape == (2, 63)
        with pytest.raises(FocusError, match="start from an empty cache"):
            retrofitted(IDS[:, :1], past_key_values=cache)


def test_names_are_checked(saved, tmp_path):
    retrofitted = model()
    focus = retrofitted.focus
    with pytest.raises(FocusError, match="no adapter 'b'; there are: 'default'"):
        focus.set_adapter("b")
    focus.add_adapter("b", saved["code"][0])
    with pytest.raises(FocusError, match="there is an adapter 'b' already"):
        focus.add_adapter("b", saved["code"][0])
    with pytest.raises(FocusError, match="is at work"):
        focus.delete_adapter("default")
    focus.delete_adapter("b")
    assert focus.adapters == ["default"]
    with pytest.raises(FocusError, match="not one of"):
        focus.delete_adapter("b")
