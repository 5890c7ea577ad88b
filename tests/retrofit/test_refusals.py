"""What cannot be retrofitted, or not be honoured, is refused with a reason; nothing is ignored."""

from __future__ import annotations

import pytest
import torch
import transformers as t

from focus_retrofit import FocusConfig, FocusError, retrofit
from tests.matrix import BY_NAME, SIZES, VOCABULARY

from .oracle import logits_of

SMALL = {k: v for k, v in SIZES.items() if k != "eos_token_id"}
IDS = torch.randint(2, VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(1))
CONFIG = FocusConfig(num_groups=4, top_k=1, window=8)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: t.BertForMaskedLM(t.BertConfig(**SMALL)), "attends in both directions"),
        (
            lambda: t.T5ForConditionalGeneration(
                t.T5Config(vocab_size=96, d_model=32, d_ff=32, num_layers=1, num_heads=2, d_kv=16)
            ),
            "encoder-decoder",
        ),
        (
            lambda: t.MambaForCausalLM(t.MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2)),
            "no softmax attention",
        ),
        (
            lambda: t.RwkvForCausalLM(t.RwkvConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2)),
            "no softmax attention",
        ),
        (lambda: t.BloomForCausalLM(t.BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4)), "its own code"),
        (lambda: BY_NAME["Mistral"].make(sliding_window=16), "within a window of its own"),
        (lambda: torch.nn.Linear(2, 2), "Linear is not a transformers model"),
    ],
    ids=["bert", "t5", "mamba", "rwkv", "bloom", "windows", "module"],
)
def test_models_that_cannot_be_retrofitted(model, reason):
    made = model()
    with pytest.raises(FocusError, match=reason):
        retrofit(made, CONFIG)
    assert not hasattr(made, "focus")


def test_twice():
    model = retrofit(BY_NAME["Llama"].make(), CONFIG)
    with pytest.raises(FocusError, match="already retrofitted"):
        retrofit(model, CONFIG)


def test_layers_without_full_attention():
    with pytest.raises(FocusError, match=r"layers \[0\] have no full attention.*\[1, 2\]"):
        retrofit(BY_NAME["Gemma3"].make(), FocusConfig(layers=[0, 1]))
    with pytest.raises(FocusError, match="picks none with full attention"):
        retrofit(BY_NAME["Gemma3"].make(), FocusConfig(layers=":1"))
    model = retrofit(BY_NAME["Gemma3"].make(), FocusConfig(layers=":2"))
    assert model.focus.layer_indices == [1]


def test_finished_masks():
    model = retrofit(BY_NAME["Llama"].make(), CONFIG)
    mask = torch.zeros(2, 1, 40, 40, dtype=torch.float64)
    with pytest.raises(FocusError, match="finished mask"):
        logits_of(model, IDS, attention_mask=mask)


def test_dropout():
    model = retrofit(BY_NAME["Llama"].make(attention_dropout=0.1), CONFIG).train()
    with pytest.raises(FocusError, match=r"attention dropout 0\.1"):
        model(IDS)
    model.focus.mode = "soft"
    model(IDS, use_cache=False)
    model.eval().focus.mode = "hard"
    model(IDS)


def test_modes():
    model = retrofit(BY_NAME["Llama"].make(), CONFIG)
    with pytest.raises(FocusError, match="mode is 'firm'"):
        model.focus.mode = "firm"
    with pytest.raises(FocusError, match="layer 7 is not retrofitted"):
        model.focus.router(7)


def test_an_unknown_backend():
    model = retrofit(BY_NAME["Llama"].make(), CONFIG, backend="warp")
    with pytest.raises(FocusError, match="backend 'warp' is not known"):
        model(IDS)
