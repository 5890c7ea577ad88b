"""The sets themselves: band, sinks and buckets hold each visible pair exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_kernels.backends.cpu import AtenTiles, block_rows
from focus_kernels.draw import cells, main
from focus_kernels.layout import sequences, token_documents, token_positions
from focus_kernels.plan import Bucket, make_plan, split_by_group, visible_pairs
from focus_kernels.problem import Problem
from focus_kernels.reference import visible
from focus_kernels.tiling import LEAST, cut, folded_small, whole_tiles

from .cases import random_groups


def problem(num_groups: int, top_k: int, window: int, sinks: int, match: str) -> Problem:
    return Problem(num_groups, top_k, window, sinks, match, 1.0, None, "distant", None, None)


def covered(engine: str, groups: torch.Tensor, p: Problem) -> torch.Tensor:
    """[n, n] how often each pair is computed, by what the plan says."""
    for bucket in make_plan(engine, groups, p).buckets:
        assert (bucket.reach.diff() >= 0).all()
        assert (bucket.keys.diff() > 0).all()
        assert (bucket.rows.diff() > 0).all()
    return cells(engine, groups, p)[1]


@settings(max_examples=80, deadline=None)
@given(data=st.data(), n=st.integers(1, 60), num_groups=st.integers(1, 6), window=st.integers(0, 12))
def test_each_visible_pair_once(data: st.DataObject, n: int, num_groups: int, window: int) -> None:
    top_k = data.draw(st.integers(1, num_groups))
    match = data.draw(st.sampled_from(["probe", "share"]))
    p = problem(num_groups, top_k, window, data.draw(st.integers(0, min(window, 4))), match)
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 50)))
    groups = random_groups(1, n, top_k, num_groups, g)
    documents = torch.zeros(1, n, dtype=torch.long)
    want = visible(torch.arange(n)[None], documents, groups, p)[0][0].long()
    assert torch.equal(covered("chunked", groups[0], p), want)
    if p.needs_chunked is None:
        assert torch.equal(covered("sorted", groups[0], p), want)
    assert visible_pairs(groups[0], p) == int(want.sum())


def test_split_by_group_keeps_order_and_empty_groups() -> None:
    lists = split_by_group(torch.tensor([[2, 0], [0, 2], [2, 1]]), 4, offset=10)
    assert [x.tolist() for x in lists] == [[10, 11], [12], [10, 11, 12], []]


def test_positions_count_real_tokens_of_a_document() -> None:
    mask = torch.tensor([[0, 1, 1, 0, 1, 1]], dtype=torch.bool)
    ids = torch.tensor([[5, 5, 9, 9, 5, 9]])
    documents = token_documents(1, 6, mask, ids, torch.device("cpu"))
    assert token_positions(documents).tolist() == [[-1, 0, 0, -1, 1, 1]]
    found = sequences(1, 6, mask, ids, torch.device("cpu"))
    assert [(s.start, s.length, None if s.index is None else s.index.tolist()) for s in found] == [
        (1, 2, [1, 4]),
        (2, 2, [2, 5]),
    ]


def test_pictures(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("*.png"))) == 4


@pytest.mark.parametrize("sharing", range(1, 65))
def test_folded_heads_fill_whole_blocks_of_one_size(sharing):
    """However full a tile is: or its rows' last bits would depend on how many follow them."""
    grain, blocks = folded_small(sharing), set()
    for wanted in range(1, grain.rows + 1):
        rows = grain.padded(wanted, 4096)
        if grain.fold and block_rows(sharing * rows) > block_rows(rows):
            rows *= sharing
        assert rows % block_rows(rows) == 0
        blocks.add(block_rows(rows))
    assert len(blocks) == 1


@given(sharing=st.integers(1, 64), expected=st.integers(1, 3000), rows=st.integers(1, 4000))
def test_whole_tiles_hold_every_row_once_in_blocks_of_one_size(sharing, expected, rows):
    """Whatever follows: the size of blocks is told from what was expected, not from what came."""
    listed = torch.arange(rows)
    c = cut(Bucket(listed, listed, listed), listed, rows, 0.5, False, 7, 0, sharing=sharing)
    tiles = list(whole_tiles(c, 3, 99, expected, sharing))
    assert [t.start for t in tiles] == [7 + sum(t.size for t in tiles[:n]) for n in range(len(tiles))]
    assert sum(t.size for t in tiles) == rows
    for tile in tiles:
        block = tile.block
        padded = max(-(-tile.size * sharing // block) * block, LEAST[block])
        assert block_rows(padded) == block
    assert len({tile.block for tile in tiles}) == 1


@pytest.mark.parametrize("block", LEAST)
@pytest.mark.parametrize("sharing", [1, 3])
def test_rows_in_blocks_do_not_depend_on_how_many_follow(sharing, block):
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2 * sharing, 60, 16), torch.randn(1, 2, 300, 16), torch.randn(1, 2, 300, 16)
    out, lse = AtenTiles.forward(q, k, v, scale=0.25, block=block)
    plain, plain_lse = AtenTiles.forward(q, k, v, scale=0.25)
    torch.testing.assert_close(out, plain)
    torch.testing.assert_close(lse, plain_lse)
    for rows in (1, 2, 31, 59):
        fewer, fewer_lse = AtenTiles.forward(q[:, :, :rows], k, v, scale=0.25, block=block)
        assert torch.equal(fewer, out[:, :, :rows]) and torch.equal(fewer_lse, lse[:, :, :rows])
