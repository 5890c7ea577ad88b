"""Extended positions: frequencies are transformers' own, the contract holds with them, and they can be taken back."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from focus_retrofit import FocusConfig, FocusError, extend_positions, load_adapter, retrofit
from focus_retrofit.positions import check_static, positions_of
from tests.matrix import BY_NAME, FAMILIES, VOCABULARY

from .oracle import expected, logits_of

MADE_FOR, TOKENS, WINDOW, FACTOR = 32, 61, 12, 2.0
CONFIG = FocusConfig(num_groups=4, top_k=1, window=WINDOW)
ROPES = ("linear", "ntk", "yarn")
SHORT = {"max_position_embeddings": MADE_FOR}
SPECIAL = {"GPTNeoX": {"rotary_pct": 1.0}}  # one pair of components in its small heads, otherwise
TURNING = [family for family in FAMILIES if family.name not in ("GPT2", "GPTBigCode")]
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0], "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


def ids_of(rows=2):
    return torch.randint(2, VOCABULARY, (rows, TOKENS), generator=torch.Generator().manual_seed(1))


def make(name, **options):
    return BY_NAME[name].make(**{**SHORT, **SPECIAL.get(name, {}), **options})


def frequencies(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers() if "inv_freq" in name}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("family", TURNING, ids=str)
def test_frequencies_are_those_of_a_model_built_from_the_config_and_can_be_undone(family):
    model, ids = make(family.name), ids_of()
    before, config = frequencies(model), model.config.to_dict()
    base = None if family.mixture else logits_of(model, ids)  # slow, and their attention is that of the others
    for rope in ROPES:
        if family.name == "Phi3" and rope != "ntk":
            with pytest.raises(FocusError, match="does not take rope"):
                extend_positions(model, rope, FACTOR)
        else:
            with extend_positions(model, rope, FACTOR):
                fresh = type(model)._from_config(copy.deepcopy(model.config), dtype=torch.float64).eval()
                assert same(frequencies(model), frequencies(fresh))
                assert not same(frequencies(model), before)
                if base is not None:
                    fresh.load_state_dict(model.state_dict())
                    moved = logits_of(model, ids)
                    torch.testing.assert_close(moved, logits_of(fresh, ids), rtol=0, atol=1e-12)
                    assert (moved - base).abs().max() > 1e-6
                assert model.config.max_position_embeddings == FACTOR * MADE_FOR
                assert positions_of(model)["original_max_position_embeddings"] == MADE_FOR
        assert same(frequencies(model), before)
        assert model.config.to_dict() == config
    assert base is None or torch.equal(logits_of(model, ids), base)


def test_each_scaling_is_what_it_says():
    """Against formulas: the slowest turns `factor` times slower, the fastest of NTK and YaRN as before."""
    model = make("Qwen3")
    old = frequencies(model)["model.rotary_emb.inv_freq"]
    found = {}
    for rope in ROPES:
        with extend_positions(model, rope, 4.0):
            found[rope] = frequencies(model)["model.rotary_emb.inv_freq"]
            scale = model.model.rotary_emb.attention_scaling
            assert scale == pytest.approx(1 + 0.1 * torch.tensor(4.0).log().item() if rope == "yarn" else 1.0)
    torch.testing.assert_close(found["linear"], old / 4)
    size = 2 * len(old)
    theta = 10000.0 * 4 ** (size / (size - 2))
    torch.testing.assert_close(found["ntk"], theta ** (-torch.arange(0, size, 2) / size))
    for rope in ROPES:
        torch.testing.assert_close(found[rope][-1], old[-1] / 4)
    assert found["ntk"][0] == old[0] == 1


def test_only_full_attention_is_scaled_where_kinds_of_layers_differ():
    model = make("Gemma3")
    before = frequencies(model)
    with extend_positions(model, "yarn", 4.0):
        after = frequencies(model)
        assert model.config.rope_parameters["sliding_attention"]["rope_type"] == "default"
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {f"model.rotary_emb.full_attention_{x}" for x in ("inv_freq", "original_inv_freq")}


@pytest.mark.parametrize(
    ("name", "rope"), [*(("Llama", rope) for rope in ROPES), ("Gemma3", "yarn"), ("DeepseekV3", "yarn")]
)
def test_the_contract_holds(name, rope):
    """Beyond what the model was made for: the oracle, the base within the window, no leak, chunks, generation."""
    family, ids = BY_NAME[name], ids_of()
    tolerance = {"rtol": 0, "atol": max(family.rounding, 1e-9)}
    model = make(name)
    extend_positions(model, rope, FACTOR)
    base = logits_of(model, ids)
    retrofit(model, CONFIG)
    whole = logits_of(model, ids)
    torch.testing.assert_close(whole, expected(model, ids), **tolerance)
    torch.testing.assert_close(whole[:, : WINDOW + 1], base[:, : WINDOW + 1], **tolerance)
    assert (whole - base).abs().max() > 1e-3
    for kept in (MADE_FOR - 3, TOKENS - 4):  # a text within what the model was made for, and one beyond
        alone = logits_of(model, ids[:, :kept])
        torch.testing.assert_close(alone, whole[:, :kept], **tolerance)
        changed = ids.clone()
        changed[:, kept:] = changed[:, kept:].flip(1) % (VOCABULARY - 2) + 2
        apart = (logits_of(model, changed)[:, :kept] - whole[:, :kept]).abs().max()
        assert apart <= (1e-5 if family.mixture else 0)
    cache = model.focus.new_cache()
    with torch.no_grad():
        parts = [model(part, past_key_values=cache).logits for part in ids.split([29, 1, 31], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, **tolerance)
    start = ids[:, : MADE_FOR - 4]
    out = model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=10, do_sample=False)
    assert torch.equal(logits_of(model, out)[:, start.shape[1] - 1 : -1].argmax(-1), out[:, start.shape[1] :])


def test_before_or_after_retrofit_is_the_same():
    ids = ids_of()
    one, other = make("Llama"), make("Llama")
    extend_positions(one, "yarn", FACTOR)
    retrofit(one, CONFIG)
    retrofit(other, CONFIG)
    extension = extend_positions(other, "yarn", FACTOR)
    torch.testing.assert_close(logits_of(one, ids), logits_of(other, ids), rtol=0, atol=1e-12)
    extension.undo()
    extension.undo()  # nothing more
    plain = logits_of(retrofit(make("Llama"), CONFIG), ids)
    torch.testing.assert_close(logits_of(other, ids), plain, rtol=0, atol=1e-12)


def test_a_dynamic_rope_leaks_and_is_refused_until_it_is_scaled_once():
    """The reason for the refusal, shown: what follows a token changes its logits, and chunks give something else."""
    model, ids = make("Llama", rope_parameters=dict(DYNAMIC)), ids_of()
    short, long = logits_of(model, ids[:, :MADE_FOR]), logits_of(model, ids)[:, :MADE_FOR]
    assert (short - long).abs().max() > 1e-3
    with pytest.raises(FocusError, match="depends on how many follow it"):
        retrofit(model, CONFIG)
    assert not hasattr(model, "focus")
    extend_positions(model, "ntk", FACTOR)
    retrofit(model, CONFIG)
    torch.testing.assert_close(logits_of(model, ids[:, :MADE_FOR]), logits_of(model, ids)[:, :MADE_FOR])
    plain = make("Llama")
    extend_positions(plain, "ntk", FACTOR)
    assert same(frequencies(plain), frequencies(model))


def test_longrope_switches_and_is_refused_until_it_settles():
    options = {"rope_parameters": {**LONGROPE, "rope_theta": 10000.0}, "original_max_position_embeddings": MADE_FOR}
    model, ids = make("Phi3", max_position_embeddings=2 * MADE_FOR, **copy.deepcopy(options)), ids_of()
    whole = logits_of(model, ids)
    assert (logits_of(model, ids[:, :MADE_FOR]) - whole[:, :MADE_FOR]).abs().max() > 1e-3
    with pytest.raises(FocusError, match=f"switch at {MADE_FOR} tokens"):
        retrofit(model, CONFIG)
    extend_positions(model, "longrope")
    assert model.config.max_position_embeddings == 2 * MADE_FOR
    assert torch.equal(logits_of(model, ids), whole)
    torch.testing.assert_close(logits_of(model, ids[:, :MADE_FOR]), whole[:, :MADE_FOR])
    check_static(retrofit(model, CONFIG))


@pytest.mark.parametrize(
    ("model", "rope", "factor", "reason"),
    [
        ("GPT2", "yarn", 2.0, r"GPT2LMHeadModel .* has no rotary positions .* its 32 positions"),
        ("GPTBigCode", "ntk", 2.0, "has no rotary positions"),
        ("Llama", "dynamic", 2.0, "use 'ntk', the same base scaled once"),
        ("Llama", "alibi", 2.0, "rope is 'alibi'; choose one of 'linear', 'ntk', 'yarn', 'longrope'"),
        ("Llama", "yarn", 1.0, r"the rope factor is 1\.0; .* more than 1"),
        ("Llama", "yarn", float("nan"), "the rope factor is nan"),
        ("Llama", "linear", None, "the rope factor is None"),
        ("Llama", "longrope", None, "without long factors: use 'yarn'"),
        ("Llama", "longrope", 2.0, "has factors of its own"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(model, rope, factor, reason):
    made = make(model)
    before = made.config.to_dict()
    with pytest.raises(FocusError, match=reason):
        extend_positions(made, rope, factor)
    assert made.config.to_dict() == before


def test_what_is_scaled_is_not_scaled_again():
    model = make("Llama")
    extend_positions(model, "linear", 2.0)
    with pytest.raises(FocusError, match=r"extended already \(linear, factor 2\.0\)"):
        extend_positions(model, "ntk", 2.0)
    trained_so = make("Llama", rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0})
    with pytest.raises(FocusError, match=r"scaled already \('linear'\)"):
        extend_positions(trained_so, "yarn", 2.0)
    slow = frequencies(trained_so)["model.rotary_emb.inv_freq"][-1]
    extend_positions(trained_so, "ntk", 2.0)
    torch.testing.assert_close(frequencies(trained_so)["model.rotary_emb.inv_freq"][-1], slow / 2)


def test_saved_models_and_adapters_know_their_positions(tmp_path, recwarn):
    model, ids = make("Llama"), ids_of()
    extend_positions(model, "yarn", FACTOR)
    model.save_pretrained(tmp_path / "model")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float64)
    assert (
        positions_of(again)
        == positions_of(model)
        == {
            "rope": "yarn",
            "factor": FACTOR,
            "original_max_position_embeddings": MADE_FOR,
        }
    )
    torch.testing.assert_close(logits_of(again, ids), logits_of(model, ids), rtol=0, atol=1e-12)
    retrofit(model, CONFIG).focus.save_pretrained(tmp_path / "adapter")
    assert f', rope="yarn", rope_factor={FACTOR})' in (tmp_path / "adapter" / "README.md").read_text()
    recwarn.clear()
    load_adapter(again, tmp_path / "adapter")
    assert not [x for x in recwarn if "positions" in str(x.message)]
    with pytest.warns(UserWarning, match=r"positions yarn, factor 2\.0; this model has them as the base model"):
        load_adapter(make("Llama"), tmp_path / "adapter")
