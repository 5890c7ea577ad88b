"""Every family: what a retrofitted model computes, and that it is its base wherever the contract says so."""

from __future__ import annotations

import pytest
import torch

from focus_retrofit import FocusConfig, load_adapter, retrofit
from tests.matrix import FAMILIES, VOCABULARY

from .oracle import expected, logits_of

TOKENS, WINDOW = 61, 12
CONFIG = {"num_groups": 4, "top_k": 1, "window": WINDOW}


@pytest.fixture(params=FAMILIES, ids=str)
def family(request):
    return request.param


@pytest.fixture
def ids():
    return torch.randint(2, VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(1))


def close(family, found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=max(family.rounding, 1e-9))


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_k": 2, "match": "share", "sinks": 0}], ids=str)
def test_hard_forward_is_the_contract(family, ids, options):
    model = retrofit(family.make(), FocusConfig(**{**CONFIG, **options}))
    assert tuple(model.focus.layer_indices) == family.full_layers
    close(family, logits_of(model, ids), expected(model, ids))
    with model.focus.disabled():
        base = logits_of(model, ids)
    assert (logits_of(model, ids) - base)[:, WINDOW + 8 :].abs().max() > 1e-3, "nothing was left out"


@pytest.mark.parametrize("gate", ["log", "multiplicative"])
def test_soft_forward_is_the_contract_and_trains_only_the_routers(family, ids, gate):
    model = retrofit(family.make(), FocusConfig(**CONFIG, gate=gate))
    model.focus.mode = "soft"
    close(family, logits_of(model, ids), expected(model, ids))
    model(ids, labels=ids, use_cache=False).loss.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == name.startswith("focus."), name
    assert all(float(p.grad.abs().sum()) > 0 for p in model.focus.trainable_parameters())


def test_equals_its_base_within_the_window_and_with_all_groups(family, ids):
    model = family.make()
    base = logits_of(model, ids)
    retrofit(model, FocusConfig(**CONFIG))
    close(family, logits_of(model, ids[:, : WINDOW + 1]), base[:, : WINDOW + 1])
    model.focus.mode = "soft"
    close(family, logits_of(model, ids[:, : WINDOW + 1]), base[:, : WINDOW + 1])
    model.focus.unload()
    for match in ("probe", "share"):
        retrofit(model, FocusConfig(num_groups=4, top_k=4, window=WINDOW, match=match))
        close(family, logits_of(model, ids), base)
        model.focus.unload()


def test_disabled_and_unloaded_are_the_base_bit_for_bit(family, ids):
    model = family.make(dtype=torch.float32)
    names = dict(model.state_dict())
    wanted, flags = logits_of(model, ids), [p.requires_grad for p in model.parameters()]
    before = model.config._attn_implementation
    retrofit(model, FocusConfig(**CONFIG))
    found = model.state_dict()
    assert list(found) == list(names) and all(found[name] is not None for name in names)
    assert not any(p.requires_grad for n, p in model.named_parameters() if not n.startswith("focus."))
    assert model.load_state_dict(names).missing_keys == []
    with model.focus.disabled():
        assert torch.equal(logits_of(model, ids), wanted)
    assert not torch.equal(logits_of(model, ids), wanted)
    assert model.focus.unload() is model
    assert torch.equal(logits_of(model, ids), wanted)
    assert [p.requires_grad for p in model.parameters()] == flags and not hasattr(model, "focus")
    assert not any(m._forward_pre_hooks or hasattr(m, "_focus_layer") for m in model.modules())
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_nothing_leaks_from_the_future(family, ids, mode):
    model = retrofit(family.make(dtype=torch.float32), FocusConfig(**CONFIG))
    model.focus.mode = mode
    changed, kept = ids.clone(), 40
    changed[:, kept:] = (changed[:, kept:] + 7) % (VOCABULARY - 2) + 2
    one, other = logits_of(model, ids)[:, :kept], logits_of(model, changed)[:, :kept]
    if family.mixture:  # experts compute their tokens together: the base's own rounding depends on the batch
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    else:
        assert torch.equal(one, other)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_neighbours_change_nothing(family, ids, side):
    model = retrofit(family.make(), FocusConfig(**CONFIG))
    lengths, mask = [TOKENS, 33], torch.ones_like(ids)
    padded = ids.clone()
    gap = slice(0, TOKENS - 33) if side == "left" else slice(33, TOKENS)
    mask[1, gap] = padded[1, gap] = 0
    places = (mask.cumsum(1) - 1).clamp_min(0)
    found = logits_of(model, padded, attention_mask=mask, position_ids=places)
    for row, length in enumerate(lengths):
        real = mask[row].bool()
        alone = logits_of(model, padded[row : row + 1, real])
        assert real.sum() == length
        close(family, found[row : row + 1, real], alone)


def test_adapter_round_trip(family, ids, tmp_path):
    model = retrofit(family.make(), FocusConfig(**CONFIG, temperature="heads"), seed=3)
    for router in model.focus.routers.values():
        torch.nn.init.uniform_(router.temperature, 0.5, 1.5)
    model.focus.balance(ids)
    wanted = logits_of(model, ids)
    model.focus.save_pretrained(tmp_path / "adapter")
    again = load_adapter(family.make(), tmp_path / "adapter")
    assert again.focus.config == model.focus.config
    assert torch.equal(logits_of(again, ids), wanted)


def test_generate_is_the_argmax_of_the_full_forward(family, ids):
    model = retrofit(family.make(), FocusConfig(**{**CONFIG, "top_k": 2}))
    found = model.generate(ids[:, :40], attention_mask=torch.ones(2, 40), max_new_tokens=12, do_sample=False)
    assert torch.equal(logits_of(model, found)[:, 39:-1].argmax(-1), found[:, 40:])


@pytest.mark.parametrize("sizes", [[37, 1, 23], [1] * TOKENS, [20, 41]], ids=["mixed", "ones", "chunks"])
def test_prefill_in_one_call_or_in_chunks(family, ids, sizes):
    model = retrofit(family.make(), FocusConfig(**CONFIG))
    cache, found = model.focus.new_cache(), []
    with torch.no_grad():
        for part in ids.split(sizes, 1):
            found.append(model(part, past_key_values=cache).logits)
    close(family, torch.cat(found, 1), logits_of(model, ids))
    assert cache.get_seq_length() == TOKENS
