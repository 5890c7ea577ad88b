"""`generate` with a Focus cache gives what `generate` without any cache gives, however it searches."""

from __future__ import annotations

import pytest
import torch
from transformers import set_seed

from focus_retrofit import FocusConfig, retrofit
from tests.matrix import BY_NAME, VOCABULARY

from .oracle import logits_of

IDS = torch.randint(2, VOCABULARY, (3, 60), generator=torch.Generator().manual_seed(4))
NEW = {"max_new_tokens": 10, "pad_token_id": 0}


@pytest.fixture(scope="module", params=["Llama", "GPT2", "Gemma2", "DeepseekV3", "GptOss"])
def model(request):
    return retrofit(BY_NAME[request.param].make(), FocusConfig(num_groups=4, top_k=1, window=8))


def run(model, ids, seed=0, **options):
    set_seed(seed)
    return model.generate(ids, **{"attention_mask": torch.ones_like(ids), **NEW, **options})


@pytest.mark.parametrize(
    "search",
    [
        {"do_sample": False},
        {"do_sample": True, "top_k": 20},
        {"num_beams": 3, "do_sample": False},
        {"num_beams": 2, "num_return_sequences": 2, "do_sample": True},
        {"num_return_sequences": 3, "do_sample": True},
        {"do_sample": False, "prefill_chunk_size": 16},
    ],
    ids=str,
)
def test_with_and_without_a_cache(model, search):
    bare = {k: v for k, v in search.items() if k != "prefill_chunk_size"}
    assert torch.equal(run(model, IDS, **search), run(model, IDS, use_cache=False, **bare))


@pytest.mark.parametrize("search", [{"do_sample": False}, {"num_beams": 2, "do_sample": False}], ids=str)
def test_left_padded_batch_is_its_rows(model, search):
    mask = torch.ones_like(IDS)
    mask[0, :25] = mask[2, :41] = 0
    padded = IDS.masked_fill(mask == 0, 0)
    found = run(model, padded, attention_mask=mask, **search)
    for row in range(3):
        real = mask[row].bool()
        alone = run(model, IDS[row : row + 1, real], **search)
        assert torch.equal(found[row, 60:], alone[0, int(real.sum()) :])


def test_continuing_a_chat(model):
    first = run(model, IDS[:1], do_sample=False, return_dict_in_generate=True)
    turn = torch.cat([first.sequences, IDS[1:2, :13]], 1)
    found = run(model, turn, do_sample=False, past_key_values=first.past_key_values)
    assert torch.equal(found, run(model, turn, do_sample=False, use_cache=False))


def test_assisted_decoding(model):
    wanted = run(model, IDS[:1], do_sample=False)
    assert torch.equal(run(model, IDS[:1], do_sample=False, prompt_lookup_num_tokens=4), wanted)
    draft = retrofit(BY_NAME["Llama"].make(seed=5), FocusConfig(num_groups=4, top_k=1, window=8))
    assert torch.equal(run(model, IDS[:1], do_sample=False, assistant_model=draft), wanted)


def test_sparse_decoding_is_reported(model):
    run(model, IDS, do_sample=False)
    lines = [line for line in model.focus.report().layers if line.shares]
    assert len(lines) == len(model.focus.layer_indices)
    assert all(0 < line.decode_density < 0.9 and 0 < line.density < 0.9 for line in lines)


def test_compiled_static_caches_are_refused(model):
    with pytest.raises(ValueError, match="cannot hold groups"):
        run(model, IDS, do_sample=False, cache_implementation="static")


def test_the_full_forward_agrees(model):
    found = run(model, IDS, do_sample=False)
    assert torch.equal(logits_of(model, found)[:, 59:-1].argmax(-1), found[:, 60:])
