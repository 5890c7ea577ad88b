"""LoRA and full fine-tuning: they learn, compute every pair, and leave no bit behind."""

from __future__ import annotations

import pytest
import torch

from focus_kernels import FocusError
from focus_retrofit.evaluation import attending, evaluate, parse_methods, prepare
from focus_retrofit.rivals import FineTuning
from tests.training.tiny import model as make_model
from tests.training.tiny import windows

METHODS = parse_methods("lora:2@1e-2,finetune@1e-3")


@pytest.fixture(scope="module")
def texts():
    return [row["input_ids"] for row in windows()][:6]


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("peft", reason="LoRA comes in the package peft")
    return make_model()


def test_they_learn_and_leave_nothing_behind(model, texts):
    before = {name: p.clone() for name, p in model.named_parameters()}
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    modules = [name for name, _ in model.named_modules()]
    prepare(model, METHODS, texts, steps=12)
    full, lora, tuned = evaluate(model, texts, parse_methods("full,lora:2@1e-2,finetune@1e-3"))
    assert lora["perplexity"] < full["perplexity"] > tuned["perplexity"]
    assert lora["density"] == tuned["density"] == 1
    assert [row["kind"] for row in (lora, tuned)] == ["weights"] * 2
    assert lora["method"] == "LoRA, rank 2, rate 0.01"
    assert {name: p.requires_grad for name, p in model.named_parameters()} == flags
    assert [name for name, _ in model.named_modules()] == modules
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not hasattr(model, "peft_config")
    config = model.config
    size = config.hidden_size // config.num_attention_heads
    both = 2 * config.hidden_size + size * (config.num_attention_heads + config.num_key_value_heads)
    assert lora["parameters"] == 2 * both * config.num_hidden_layers


def test_untrained_weights_are_refused(model, texts):
    with pytest.raises(FocusError, match="learns from training text"), attending(model, "lora", 8):
        pass
    with pytest.raises(FocusError, match="has not been trained"), FineTuning(1e-4, 1).applied(model):
        pass
    with pytest.raises(FocusError, match="0 windows"):
        FineTuning(1e-4, 1).prepare(model, [])


@pytest.mark.parametrize("text", ["finetune:2", "focus@1e-3", "lora@0", "lora@e", "lora:2@-1"])
def test_rates_belong_to_what_is_trained(text):
    with pytest.raises(FocusError, match="is not known"):
        parse_methods(text)


def test_what_was_learned_is_kept_and_taken_from_there(tmp_path, texts):
    pytest.importorskip("peft", reason="LoRA comes in the package peft")
    methods = parse_methods("lora:2,seer,routing")
    first, second = make_model(), make_model()
    prepare(first, methods, texts, steps=2, folder=tmp_path)
    prepare(second, methods, [], steps=2, folder=tmp_path)  # no text to learn from again
    for method in methods:
        logits = []
        for model in (first, second):
            with torch.inference_mode(), attending(model, *method):
                logits.append(model(texts[0][None], use_cache=False).logits)
        assert torch.equal(*logits)
