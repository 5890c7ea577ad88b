"""Packed documents, padding anywhere, and the positions from which attention is sparse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_retrofit import FocusConfig, retrofit
from tests.matrix import BY_NAME, FAMILIES, VOCABULARY

from .oracle import expected, logits_of

IDS = torch.randint(2, VOCABULARY, (2, 70), generator=torch.Generator().manual_seed(6))
CONFIG = {"num_groups": 4, "top_k": 1, "window": 8}


def close(found, wanted, atol=1e-9):
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("family", [f for f in FAMILIES if f.name != "GptOss"], ids=str)  # its base ignores packing
def test_packed_documents_do_not_see_each_other(family, mode):
    model = retrofit(family.make(), FocusConfig(**CONFIG))
    model.focus.mode = mode
    ids, lengths = IDS[:1], [31, 12, 27]
    places = torch.cat([torch.arange(n) for n in lengths])[None]
    found = logits_of(model, ids, position_ids=places)
    alone = [logits_of(model, part) for part in ids.split(lengths, 1)]
    close(found, torch.cat(alone, 1), max(family.rounding, 1e-9))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 69), max_size=30, unique=True), st.sampled_from(["hard", "soft"]), st.booleans())
def test_padding_anywhere(gaps, mode, late):
    model = retrofit(BY_NAME["Llama"].make(), FocusConfig(**CONFIG, min_length=20 if late else 0))
    model.focus.mode = mode
    mask = torch.ones_like(IDS)
    mask[0, gaps] = 0
    places = (mask.cumsum(1) - 1).clamp_min(0)
    found = logits_of(model, IDS, attention_mask=mask, position_ids=places)
    wanted = expected(model, IDS, mask - 1, attention_mask=mask, position_ids=places)
    close(found[mask.bool()], wanted[mask.bool()])


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.5}, {"temperature": 0.5, "temperature_scope": "all"}], ids=str
)
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_dense_below_a_position(options, mode):
    model = BY_NAME["Llama"].make()
    base = logits_of(model, IDS)
    retrofit(model, FocusConfig(**CONFIG, **options, min_length=30))
    model.focus.mode = mode
    found = logits_of(model, IDS)
    close(found, expected(model, IDS))
    close(found[:, :30], base[:, :30])
    assert (found - base)[:, 40:].abs().max() > 1e-3


def test_dense_below_is_the_base_bit_for_bit():
    model = BY_NAME["Llama"].make(dtype=torch.float32)
    base = logits_of(model, IDS)
    retrofit(model, FocusConfig(**CONFIG, min_length=70))
    assert torch.equal(logits_of(model, IDS), base)
    assert all(line.routing == "dense (sdpa)" and line.density == 1 for line in model.focus.report().layers)


def test_layers_that_stay_dense_see_padding_and_packing():
    """A layer that was not chosen gets the mask that its base would have got."""
    for family in (BY_NAME["Llama"], BY_NAME["Gemma2"]):
        model = family.make(dtype=torch.float32)
        mask = torch.ones_like(IDS)
        mask[0, :20] = 0
        places = (mask.cumsum(1) - 1).clamp_min(0)
        packed = {"position_ids": torch.cat([torch.arange(30), torch.arange(40)]).expand(2, -1)}
        padded = {"attention_mask": mask, "position_ids": places}
        wanted = [logits_of(model, IDS, **given) for given in (packed, padded)]
        retrofit(model, FocusConfig(num_groups=4, top_k=4, window=8, layers=[1]))
        for given_, base in zip((packed, padded), wanted, strict=True):
            real = mask.bool() if "attention_mask" in given_ else torch.ones_like(mask).bool()
            close(logits_of(model, IDS, **given_)[real], base[real], 1e-4)
