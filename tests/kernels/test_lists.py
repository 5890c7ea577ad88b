"""attend_lists against a dense mask: any rows, keys and reaches, several lists to a row."""

from __future__ import annotations

import pytest
import torch

from focus_kernels import FocusError, attend_lists
from focus_kernels.plan import Bucket, distant_buckets
from focus_kernels.problem import check_problem


def problem(heads, size, **options):
    given = {"scale": None, "temperature": None, "temperature_scope": "distant", "softcap": None, "sink_logits": None}
    shape = {"top_k": 1, "num_groups": 4, "window": 0, "sinks": 0, "match": "probe", "device": torch.device("cpu")}
    return check_problem(q_heads=heads, head_size=size, **{**shape, **given, **options})


def dense(query, key, value, lists, asked):
    """One masked softmax; rows that see nothing give 0."""
    seen = torch.zeros(query.shape[1], key.shape[1], dtype=torch.bool)
    for one in lists:
        for row, reach in zip(one.rows.tolist(), one.reach.tolist(), strict=True):
            assert not seen[row, one.keys[:reach]].any()
            seen[row, one.keys[:reach]] = True
    repeat = query.shape[0] // key.shape[0]
    logits = query @ key.repeat_interleave(repeat, 0).mT * asked.scale
    if asked.temperature is not None:
        logits = logits / asked.temperature.reshape(-1, 1, 1)
    if asked.softcap is not None:
        logits = torch.tanh(logits / asked.softcap) * asked.softcap
    logits = logits.masked_fill(~seen, float("-inf"))
    return logits.softmax(-1).nan_to_num() @ value.repeat_interleave(repeat, 0), logits.logsumexp(-1)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6}, {"softcap": 3.0}, {"temperature": "heads"}], ids=str)
@pytest.mark.parametrize(("rows", "keys", "value_size"), [(37, 50, 8), (300, 211, 5), (700, 900, 8)])
def test_lists_are_a_dense_mask(rows, keys, value_size, options):
    g = torch.Generator().manual_seed(rows)
    if options.get("temperature") == "heads":
        options = {"temperature": torch.rand(4, generator=g, dtype=torch.float64) + 0.5}
    query = torch.randn(4, rows, 8, generator=g, dtype=torch.float64)
    key = torch.randn(2, keys, 8, generator=g, dtype=torch.float64)
    value = torch.randn(2, keys, value_size, generator=g, dtype=torch.float64)
    lists = []
    for own in torch.randperm(keys, generator=g).split(keys // 3):  # each key in one list, a row in several
        readers = (torch.rand(rows, generator=g) < 0.6).nonzero()[:, 0]
        reach = torch.randint(1, own.numel() + 1, (readers.numel(),), generator=g).sort().values
        lists.append(Bucket(own.sort().values, readers, reach))
    asked = problem(4, 8, **options)
    out, lse = attend_lists(query, key, value, lists, asked)
    want, want_lse = dense(query, key, value, lists, asked)
    torch.testing.assert_close(out, want, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(lse, want_lse, atol=1e-12, rtol=1e-10)


def test_early_rows_read_everywhere():
    groups = torch.randint(0, 3, (40, 1), generator=torch.Generator().manual_seed(0))
    asked = problem(1, 8, num_groups=3, window=4, sinks=2)
    seen = torch.zeros(40, 40, dtype=torch.bool)
    for one in distant_buckets(groups, asked, everywhere=20):
        for row, reach in zip(one.rows.tolist(), one.reach.tolist(), strict=True):
            seen[row, one.keys[:reach]] = True
    i, j = torch.arange(40)[:, None], torch.arange(40)
    far = (i - j > 4) & (j >= 2)
    assert torch.equal(seen, far & ((groups == groups.T) | (i < 20)))


def test_what_cannot_run_is_refused():
    x = torch.zeros(1, 3, 8)
    with pytest.raises(FocusError, match="softcap"):
        attend_lists(x, x, x, [], problem(1, 8, softcap=2.0), backend="cpu")
    with pytest.raises(FocusError, match="has no tiles"):
        attend_lists(x, x, x, [], problem(1, 8), backend="flash_attn")
    with pytest.raises(FocusError, match="no gradient"):
        attend_lists(x.requires_grad_(), x, x, [], problem(1, 8))
