"""Groups per query, spread over layers: the best there is for a budget, by what was gained, kept with the adapter."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_kernels import FocusError
from focus_retrofit import load_adapter
from focus_retrofit.training import TrainConfig, spread, spread_groups, train
from focus_retrofit.training.spread import _worth, share_out
from tests.matrix import BY_NAME

from .tiny import LetterTokenizer, model, texts, windows

SMALL = {"length": 48, "fit_windows": 6, "fit_steps": 10, "steps": 2, "save_every": 2, "eval_every": 0, "lr": 1e-2}


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=1, max_size=4),
    more=st.integers(0, 9),
)
def test_no_other_way_to_share_out_is_worth_more(rows, more):
    worth, total = {7 * n: torch.tensor(row).double() for n, row in enumerate(rows)}, len(rows) + more
    found = share_out(worth, total)
    ways = [ks for ks in product((1, 2, 3), repeat=len(rows)) if sum(ks) <= total]
    best = max(sum(row[k - 1] for row, k in zip(rows, ks, strict=True)) for ks in ways)
    assert list(found) == list(worth)
    assert tuple(found.values()) in ways
    assert sum(float(worth[layer][k - 1]) for layer, k in found.items()) == best
    fewest = min(sum(ks) for ks in ways if sum(row[k - 1] for row, k in zip(rows, ks, strict=True)) == best)
    assert sum(found.values()) == fewest  # nothing is paid for what is worth nothing


def test_what_may_be_chance_does_not_count():
    sure = torch.tensor([[5.0, 1.0], [5.0, 1.0], [5.0, 1.0]])
    by_chance = torch.tensor([[5.0, 9.0], [5.0, -9.0], [5.0, 3.0]])  # the mean is the same
    assert _worth(sure).tolist() == [0, 1]
    assert _worth(by_chance)[1] < 0
    assert _worth(sure[:1]).tolist() == [0, 1]


def batches(count=4):
    data = windows()
    return [{name: value[None] for name, value in data[n].items()} for n in range(count)]


def test_gains_by_choice_add_up_to_those_of_all_pairs(monkeypatch):
    """Against each pair's gain and the place of its key's group among the query's, written out."""
    retrofitted, shown, noted, gains = model(top_k=2), [], [], spread.gains

    def show(seen, *rest):
        parts = list(gains(seen, *rest))
        shown.append((seen.index, seen.routed.logits, torch.cat([part for _, part in parts], 1)))
        return parts

    def note(rows):
        noted.append(rows)
        return _worth(rows)

    monkeypatch.setattr(spread, "gains", show)
    monkeypatch.setattr(spread, "_worth", note)
    chosen = spread_groups(retrofitted, batches())
    for number, index in enumerate(retrofitted.focus.layer_indices):
        mine = [(logits, weights) for layer, logits, weights in shown if layer == index]
        assert len(mine) == 4
        for row, (logits, weights) in enumerate(mine):
            order = logits[0].argsort(-1, descending=True)
            total = torch.zeros(4)
            for query, key in (weights[0] != 0).nonzero().tolist():
                place = order[query].tolist().index(int(order[key, 0]))
                total[place] += float(weights[0, query, key])
            torch.testing.assert_close(noted[number][row], total, rtol=1e-4, atol=1e-6)
    assert sum(chosen.values()) <= 2 * len(chosen)
    assert {layer: retrofitted.focus.config.k_of(layer) for layer in chosen} == chosen


def test_a_failure_on_the_way_leaves_the_groups_as_they_were(monkeypatch):
    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    retrofitted = model(top_k=2, layer_top_k={0: 3})
    monkeypatch.setattr(spread, "read", fail)
    with pytest.raises(KeyboardInterrupt):
        spread_groups(retrofitted, batches())
    assert retrofitted.focus.config.layer_top_k == {0: 3}


def test_only_where_each_group_costs_the_same():
    with pytest.raises(FocusError, match="match is 'share'"):
        spread_groups(model(top_k=2, match="share"), batches())


def run(folder, retrofitted, **changes):
    config = TrainConfig(**{**SMALL, **changes})
    return train(retrofitted, LetterTokenizer(), texts(), folder, config=config)


def test_a_run_spreads_and_goes_on_as_spread(tmp_path, monkeypatch):
    def other(model, some, trust):
        model.focus.config.layer_top_k = {1: 3, 2: 1}
        return {0: 2, 1: 3, 2: 1}

    monkeypatch.setattr("focus_retrofit.training.recipe.spread_groups", other)
    first = run(tmp_path, model(top_k=2))
    assert first["stages"]["prepare"]["groups"] == [2, 3, 1]
    (tmp_path / "train" / "done.json").unlink()
    again = model(top_k=2)
    run(tmp_path, again)
    assert again.focus.config.layer_top_k == {1: 3, 2: 1}
    served = load_adapter(BY_NAME["Llama"].make(), str(tmp_path / "adapter"))
    assert served.focus.config.layer_top_k == {1: 3, 2: 1}


@pytest.mark.parametrize("changes", [{"fit": "none"}, {"fit": "mass"}, {"spread_windows": 0}], ids=str)
def test_left_alone_where_it_was_not_asked_for(tmp_path, changes):
    found = run(tmp_path, model(top_k=2), steps=0, **changes)
    assert "groups" not in found["stages"]["prepare"]
    one = run(tmp_path / "one", model(top_k=1), steps=0)
    assert "groups" not in one["stages"]["prepare"]
