"""The merge by itself: one softmax from two, the same bits whatever is merged along."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_kernels.merge import SERIAL, _pieces, merge_

INF = float("inf")


def parts(*shape: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """out, lse, more, more_lse; some rows saw nothing on one side, some on both."""
    g = torch.Generator().manual_seed(seed)
    out, more = (torch.randn(*shape, 8, generator=g, dtype=dtype) for _ in range(2))
    lse, more_lse = (3 * torch.randn(*shape, generator=g, dtype=dtype) for _ in range(2))
    for place, empty in enumerate(((lse,), (more_lse,), (lse, more_lse))):
        for x in empty:
            x.view(-1)[place :: 11 + place] = -INF
    return [out.where(lse[..., None] > -INF, 0), lse, more.where(more_lse[..., None] > -INF, 0), more_lse]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 100) | st.sampled_from([32, 64, 96]),
    more_rows=st.integers(0, 100) | st.sampled_from([0, 32, 64]),
    heads=st.integers(1, 5),
    blocks=st.sampled_from([None, 1, 3]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    turned=st.tuples(st.booleans(), st.booleans()),
)
def test_rows_do_not_notice_who_is_merged_along_or_how_they_lie(rows, more_rows, heads, blocks, dtype, turned):
    shape = (heads, rows + more_rows) if blocks is None else (blocks, heads, rows + more_rows)
    whole = parts(*shape, dtype=dtype)
    for place, turn in zip((1, 3), turned, strict=True):  # as aten has a logsumexp: heads side by side
        whole[place] = whole[place].mT.contiguous().mT if turn else whole[place]
    out, lse, more, more_lse = whole
    alone = [(x[..., :rows, :] if x.dim() > len(shape) else x[..., :rows]).contiguous().clone() for x in whole]
    both = torch.stack([lse, more_lse]).double()
    weights = torch.softmax(both, 0).nan_to_num(0)[..., None]
    want, want_lse = (weights * torch.stack([out, more]).double()).sum(0), torch.logsumexp(both, 0)
    merge_(*whole)
    merge_(*alone)
    torch.testing.assert_close(out.double(), want, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-6, atol=1e-6)
    assert torch.equal(alone[0], out[..., :rows, :]) and torch.equal(alone[1], lse[..., :rows])


@pytest.mark.parametrize("shape", [(1, 64), (9, 4096), (64, 9, 64), (3, 2, 40000), (2, 1, 16384)])
def test_pieces_cover_everything_once_and_are_small(shape):
    seen = torch.zeros(shape, dtype=torch.int8)
    for piece in _pieces(shape):
        seen[piece] += 1
        assert seen[piece].numel() <= SERIAL
    assert bool((seen == 1).all())
