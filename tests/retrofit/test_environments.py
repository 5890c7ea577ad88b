"""Where models live: half precision, checkpointing, compilation, dispatched and quantised weights, autocast."""

from __future__ import annotations

import pytest
import torch
from accelerate import dispatch_model

from focus_retrofit import FocusConfig, load_adapter, retrofit
from tests.matrix import BY_NAME, FAMILIES, VOCABULARY

from .oracle import logits_of

IDS = torch.randint(2, VOCABULARY, (2, 70), generator=torch.Generator().manual_seed(8))
CONFIG = FocusConfig(num_groups=4, top_k=1, window=8)
LLAMA = BY_NAME["Llama"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_half_precision(family, dtype):
    model = retrofit(family.make(dtype=dtype), CONFIG)
    assert {p.dtype for p in model.focus.trainable_parameters()} == {torch.float32}
    found = logits_of(model, IDS)
    assert found.dtype == dtype and bool(found.isfinite().all())
    with model.focus.disabled():
        base = logits_of(model, IDS)
    assert (logits_of(model, IDS[:, :9]) - base[:, :9]).float().abs().mean() < 0.02
    out = model.generate(IDS[:, :30], attention_mask=torch.ones(2, 30), max_new_tokens=4, do_sample=False)
    assert out.shape == (2, 34)


def test_autocast():
    model = retrofit(LLAMA.make(dtype=torch.float32), CONFIG)
    with torch.autocast("cpu", torch.bfloat16):
        found = logits_of(model, IDS)
    assert found.dtype == torch.bfloat16
    assert (found.float() - logits_of(model, IDS)).abs().mean() < 0.1
    with torch.autocast("cpu", torch.bfloat16):
        out = model.generate(IDS[:, :40], attention_mask=torch.ones(2, 40), max_new_tokens=5, do_sample=False)
    assert out.shape == (2, 45)


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(mode, reentrant):
    gradients = []
    for checkpointing in (False, True):
        model = retrofit(LLAMA.make(), FocusConfig(num_groups=4, top_k=1, window=8, temperature="learned")).train()
        model.focus.mode = mode
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        model(IDS, labels=IDS).loss.backward()
        gradients.append([model.focus.router(n).temperature.grad for n in range(3)])
        if mode == "soft":
            gradients[-1] += [p.grad for p in model.focus.trainable_parameters()]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-7)
    assert all(float(g.abs().sum()) > 0 for g in gradients[0])


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_compiled_around_the_attention(mode):
    model = retrofit(LLAMA.make(), CONFIG)
    model.focus.mode = mode
    wanted = logits_of(model, IDS)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(logits_of(compiled, IDS), wanted, rtol=0, atol=1e-9)
    with model.focus.disabled():
        base = logits_of(model, IDS)
        torch.testing.assert_close(logits_of(compiled, IDS), base, rtol=0, atol=1e-9)
    if mode == "hard":
        with torch.no_grad():
            cache = compiled(IDS[:, :50]).past_key_values
            found = compiled(IDS[:, 50:], past_key_values=cache).logits
        torch.testing.assert_close(found, wanted[:, 50:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("when", ["before", "after"])
def test_dispatched_to_cpu_and_disk(tmp_path, when):
    wanted = logits_of(retrofit(LLAMA.make(dtype=torch.float32), CONFIG), IDS)
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.norm": "cpu", "lm_head": "cpu"}
    places |= {"model.rotary_emb": "cpu", "model.layers.1": "disk", "model.layers.2": "disk"}
    model = LLAMA.make(dtype=torch.float32)
    if when == "after":
        retrofit(model, CONFIG)
        places["focus"] = "cpu"
    model = dispatch_model(model, places, main_device="cpu", offload_dir=tmp_path, force_hooks=True)
    if when == "before":
        retrofit(model, CONFIG)
    assert torch.equal(logits_of(model, IDS), wanted)
    out = model.generate(IDS[:, :40], attention_mask=torch.ones(2, 40), max_new_tokens=5, do_sample=False)
    assert torch.equal(logits_of(model, out)[:, 39:-1].argmax(-1), out[:, 40:])


def test_saved_and_loaded_as_a_base_model(tmp_path):
    """`save_pretrained` of the model itself writes the base, and nothing of Focus."""
    model = retrofit(LLAMA.make(dtype=torch.float32), CONFIG)
    model.save_pretrained(tmp_path / "base")
    model.focus.save_pretrained(tmp_path / "adapter")
    again = type(model).from_pretrained(tmp_path / "base")
    with model.focus.disabled():
        assert torch.equal(logits_of(again, IDS), logits_of(model, IDS))
    load_adapter(again, tmp_path / "adapter")
    assert torch.equal(logits_of(again, IDS), logits_of(model, IDS))


@pytest.mark.parametrize(("name", "bits"), [("Llama", 4), ("Llama", 8), ("DeepseekV3", 4)])
def test_quantised_base(tmp_path, name, bits):
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    family = BY_NAME[name]
    sizes = {"hidden_size": 256, "intermediate_size": 256}  # what its CPU kernels can tile
    if name == "DeepseekV3":
        sizes |= {"moe_intermediate_size": 128, "kv_lora_rank": 128, "q_lora_rank": 128, "head_dim": 64}
        sizes |= {"qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64}
    original = family.make(dtype=torch.float32, **sizes)
    original.save_pretrained(tmp_path)
    kind = type(original)
    quantised = BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    model = kind.from_pretrained(tmp_path, quantization_config=quantised, dtype=torch.float32).eval()
    base = logits_of(model, IDS)
    retrofit(model, CONFIG)
    assert {p.dtype for p in model.focus.trainable_parameters()} == {torch.float32}
    with model.focus.disabled():
        assert torch.equal(logits_of(model, IDS), base)
    assert (logits_of(model, IDS) - base)[:, 20:].abs().max() > 1e-3
    out = model.generate(IDS[:, :40], attention_mask=torch.ones(2, 40), max_new_tokens=5, do_sample=False)
    agree = logits_of(model, out)[:, 39:-1].argmax(-1) == out[:, 40:]
    assert agree.float().mean() > 0.7  # 8-bit layers round by batch
    # once the 4-bit layers ran in eval mode on a CPU, they have no backward: train a model that never did
    model = kind.from_pretrained(tmp_path, quantization_config=quantised, dtype=torch.float32).train()
    retrofit(model, CONFIG).focus.mode = "soft"
    model(IDS, labels=IDS, use_cache=False).loss.backward()
    assert all(float(p.grad.abs().sum()) > 0 for p in model.focus.trainable_parameters())


@pytest.mark.parametrize("base", ["eager", "sdpa"])
def test_over_either_implementation(base):
    model = LLAMA.make(attn_implementation=base)
    retrofit(model, CONFIG)
    wanted = logits_of(retrofit(LLAMA.make(), CONFIG), IDS)
    torch.testing.assert_close(logits_of(model, IDS), wanted, rtol=0, atol=1e-9)
    with model.focus.disabled():
        assert model.config._attn_implementation == base


def test_inference_mode_and_other_calls():
    model = retrofit(LLAMA.make(), CONFIG)
    wanted = logits_of(model, IDS)
    with torch.inference_mode():
        found = model(IDS, output_hidden_states=True)
        assert torch.equal(found.logits, wanted) and len(found.hidden_states) == 4
        embedded = model(inputs_embeds=model.get_input_embeddings()(IDS)).logits
        assert torch.equal(embedded, wanted)
        last = model(IDS, logits_to_keep=1).logits
    torch.testing.assert_close(last, wanted[:, -1:], rtol=0, atol=1e-12)
