"""What is said of a text's groups is what the model did."""

from __future__ import annotations

import pytest
import torch

from focus_kernels import FocusError
from focus_retrofit import FocusConfig, retrofit
from focus_retrofit.inspection import inspect_text, top_tokens
from tests.matrix import BY_NAME
from tests.training.tiny import model as make_model

IDS = torch.randint(1, 27, (80,), generator=torch.Generator().manual_seed(5))


class Letters:
    def decode(self, ids, **options):
        return chr(96 + ids[0])


@pytest.mark.parametrize("changes", [{}, {"top_k": 2}, {"top_k": 2, "match": "share"}])
def test_groups_and_the_weight_they_keep(changes):
    model = make_model(**changes)
    found = inspect_text(model, Letters(), IDS)
    assert found["tokens"] == [chr(96 + n) for n in IDS.tolist()]
    assert [layer["layer"] for layer in found["layers"]] == [0, 1, 2]
    # the first layer's attention, by the model itself: its hidden states do not depend on groups
    base = BY_NAME["Llama"].make()
    base.set_attn_implementation("eager")
    weights = base(IDS[None], output_attentions=True).attentions[0][0].sum(0)  # [T, T]
    i, j = torch.arange(80)[:, None], torch.arange(80)[None]
    distant = (i - j > 8) & (j >= 2)
    groups = torch.tensor(found["layers"][0]["groups"])
    keys = groups if changes.get("match") == "share" else groups[:, :1]
    same = (groups[:, None, :, None] == keys[None, :, None, :]).any(-1).any(-1)
    expected = (weights * distant * same).sum() / (weights * distant).sum()
    assert found["layers"][0]["kept"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert torch.equal(groups, model.focus.all_groups_seen(0)[0])


def test_top_tokens_are_a_groups_own():
    tokens, groups = ["the", "cat", "the", "sat", "cat", "the", "."], [0, 1, 0, 1, 1, 1, 0]
    found = top_tokens(tokens, groups, 2)
    assert [one["token"] for one in found[0]] == ["the"]
    assert found[0][0] == {"token": "the", "count": 2, "share": 2 / 3}
    assert found[1][0]["token"] == "cat"


def test_layers_with_a_window_of_their_own_are_left_out():
    model = retrofit(BY_NAME["Gemma3"].make(), FocusConfig(num_groups=4, top_k=1, window=8, sinks=2))
    assert [layer["layer"] for layer in inspect_text(model, Letters(), IDS)["layers"]] == [1, 2]


def test_mistakes_are_named():
    model = make_model()
    model.focus.unload()
    with pytest.raises(FocusError, match="no Focus attention"):
        inspect_text(model, Letters(), IDS)
