"""Planning over ranks, in one process: every distant pair is computed once, by somebody, at an even cost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_kernels import FocusError
from focus_kernels.problem import check_problem
from focus_retrofit.parallel import expected_traffic
from focus_retrofit.parallel.slices import Slices, even_starts
from focus_retrofit.parallel.stretches import NEAR, cut_stretches


def problem(num_groups, top_k, window, sinks):
    options = dict.fromkeys(("scale", "temperature", "softcap", "sink_logits"))
    shape = {"num_groups": num_groups, "top_k": top_k, "window": window, "sinks": sinks, "match": "probe"}
    return check_problem(
        q_heads=1, head_size=8, device=torch.device("cpu"), temperature_scope="distant", **shape, **options
    )


@st.composite
def plans(draw):
    num_groups = draw(st.integers(1, 7))
    top_k = draw(st.integers(1, num_groups))
    window = draw(st.integers(0, 12))
    sinks = draw(st.integers(0, window))
    shape = (draw(st.integers(1, 2)), draw(st.integers(2, 60)), num_groups)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    taste = torch.linspace(0, draw(st.sampled_from([0.0, 0.5, 5.0])), num_groups)  # at the end some are empty
    groups = (torch.rand(shape, generator=generator) + taste).topk(top_k, -1).indices
    ranks = draw(st.integers(1, min(9, shape[1])))
    return groups, problem(num_groups, top_k, window, sinks), ranks, draw(st.integers(0, 30))


@settings(max_examples=150, deadline=None)
@given(plans())
def test_every_distant_pair_is_computed_once(plan):
    groups, asked, ranks, everywhere = plan
    batch, tokens, _ = groups.shape
    stretches = cut_stretches(groups, asked, ranks, everywhere)
    assert len(stretches) == ranks
    count = torch.zeros(batch * tokens, batch * tokens, dtype=torch.long)
    for one in stretches:
        assert (one.rows.diff() > 0).all() and one.keys.unique().numel() == one.keys.numel()
        for part in one.lists:
            for row, reach in zip(part.rows.tolist(), part.reach.tolist(), strict=True):
                count[one.rows[row], one.keys[part.keys[:reach]]] += 1
    i, j = torch.arange(tokens)[:, None], torch.arange(tokens)
    for row in range(batch):
        match = (groups[row][:, None] == groups[row][None, :, :1]).any(-1) | (i < everywhere)
        want = match & (i - j > asked.window) & (j >= asked.sinks)
        mine = slice(row * tokens, (row + 1) * tokens)
        assert torch.equal(count[mine, mine], want.long())
        count[mine, mine] = 0
    assert not count.any()  # rows of a batch never meet


@settings(max_examples=150, deadline=None)
@given(plans())
def test_stretches_cost_the_same(plan):
    groups, asked, ranks, everywhere = plan
    stretches = cut_stretches(groups, asked, ranks, everywhere)
    costs = [one.cost for one in stretches]
    largest = max((int(part.reach.max()) for one in stretches for part in one.lists), default=0)
    even = sum(costs) / ranks
    assert max(costs) <= even * (1 + 2 * NEAR) + largest + 1e-6
    assert min(costs) >= even * (1 - 2 * NEAR) - largest - 1e-6


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 3))
def test_tokens_stand_where_their_owner_looks(sizes, batch):
    starts = tuple(sum(sizes[:n]) for n in range(len(sizes) + 1))
    every = torch.arange(batch * starts[-1]).view(batch, -1)
    for rank in range(len(sizes)):
        slices = Slices(starts, rank, batch)
        mine = every[:, starts[rank] : starts[rank + 1]].reshape(-1)
        assert (slices.owners(mine) == rank).all()
        assert torch.equal(slices.places(mine), torch.arange(mine.numel()))
        assert torch.equal(slices.numbers(range(starts[rank], starts[rank + 1])), mine)


def test_more_ranks_than_tokens_are_refused():
    with pytest.raises(FocusError, match="3 tokens cannot be spread over 4 ranks"):
        even_starts(3, 4)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize(("ranks", "num_groups"), [(2, 4), (4, 4), (8, 4), (3, 8), (6, 4), (16, 2)])
def test_the_formula_counts_what_the_plan_sends(ranks, num_groups, top_k):
    tokens, window, sinks = 6000, 64, 4
    generator = torch.Generator().manual_seed(0)
    turns = [torch.randperm(num_groups, generator=generator) for _ in range(tokens // num_groups)]
    block = torch.stack([torch.cat([turn.roll(n) for turn in turns]) for n in range(top_k)], 1)  # even groups
    stretches = cut_stretches(block[None], problem(num_groups, top_k, window, sinks), ranks)
    slices = Slices(even_starts(tokens, ranks), 0)
    rows = sum(int((slices.owners(one.rows) != rank).sum()) for rank, one in enumerate(stretches))
    keys = sum(int((slices.owners(one.keys) != rank).sum()) for rank, one in enumerate(stretches))
    expected = expected_traffic(tokens, ranks, num_groups, top_k, 1, 1, 1, window, sinks, 1)
    assert rows == pytest.approx(expected["queries"], rel=0.08)
    assert 2 * keys == pytest.approx(expected["keys"], rel=0.08)
