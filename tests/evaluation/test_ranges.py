"""Ranges of positions made from segments, against the losses they were made of; and the plot of them."""

from __future__ import annotations

import pytest
import torch

from focus_retrofit.evaluation.ranges import SEGMENT, in_range, mean_and_error, paired, ranges, segments


@pytest.fixture
def losses():
    return torch.rand(4095, generator=torch.Generator().manual_seed(0)) + 2


def test_ranges_hold_every_token_once():
    assert ranges(16384) == [(0, 1024), (1024, 2048), (2048, 4096), (4096, 8192), (8192, 16384)]
    assert ranges(3000) == [(0, 1024), (1024, 2048), (2048, 3000)]
    assert ranges(512) == [(0, 512)]


def test_a_range_is_the_mean_of_its_losses(losses):
    kept = segments(losses)
    assert len(kept) == 4096 // SEGMENT
    for begin, end in ranges(4096):
        found = mean_and_error(in_range([kept, kept], begin, end))
        assert found["perplexity"] == pytest.approx(float(losses[begin:end].double().mean().exp()), rel=1e-4)
    assert in_range([kept, kept], 0, 4096).tolist() == kept + kept


def test_differences_are_paired(losses):
    """A constant change has no error, however much segments differ."""
    own, other = (in_range([segments(x)], 0, 4096) for x in (losses + 0.1, losses))
    found = paired(own, other)
    assert found["over"] == pytest.approx(torch.tensor(0.1).expm1().item(), rel=1e-3)
    assert found["over_error"] < 1e-4 < mean_and_error(own)["standard_error"]


def test_the_plot_is_a_picture():
    pytest.importorskip("matplotlib")
    from focus_retrofit.report.plot_positions import draw_positions

    for high in (6.0, 4000.0):  # both kinds of axis
        curves = [
            {"title": title, "rope": rope, "edges": [0, 1024, 2048], "perplexity": [5.0, high]}
            for title in ("full attention", "Focus")
            for rope in ("none", "longrope")
        ]
        assert draw_positions(curves, 1024).startswith(b"\x89PNG")
