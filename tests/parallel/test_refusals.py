"""What cannot be spread over ranks is refused before anything is sent."""

from __future__ import annotations

import pytest
import torch

from focus_kernels import FocusError
from focus_retrofit import FocusConfig, retrofit
from focus_retrofit.parallel import sequence_parallel
from focus_retrofit.parallel.checks import check_input
from tests.matrix import BY_NAME


def model(family="Llama", options=None, **config):
    shape = {"num_groups": 4, "top_k": 1, "window": 8, "sinks": 2, **config}
    return retrofit(BY_NAME[family].make(**(options or {})), FocusConfig(**shape))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BY_NAME["Llama"].make(), "needs a retrofitted model"),
        (lambda: model(balance="sinkhorn"), "cannot be sliced; use 'potentials'"),
        (lambda: model(match="share", top_k=2), "match='share' with top_k=2"),
        (lambda: model(match="share", top_k=1, layer_top_k={0: 2}), "match='share' with top_k=1 to 2"),
        (lambda: model(), "torchrun"),
    ],
)
def test_models_that_cannot_be_sliced(make, said):
    with pytest.raises(FocusError, match=said), sequence_parallel(make()):
        pass


def test_calls_that_cannot_be_sliced():
    retrofitted, ids = model(), torch.ones(1, 5, dtype=torch.long)
    assert check_input(retrofitted, (ids,), {}) is ids
    assert check_input(retrofitted, (), {"input_ids": ids, "attention_mask": torch.ones(1, 5)}) is ids
    cache = retrofitted.focus.new_cache()
    for given, said in (
        ({"use_cache": True}, "gather_cache"),
        ({"past_key_values": cache}, "gather_cache"),
        ({"attention_mask": torch.tensor([[0, 1, 1, 1, 1]])}, "padding cannot be sliced"),
    ):
        with pytest.raises(FocusError, match=said):
            check_input(retrofitted, (ids,), given)
    with pytest.raises(FocusError, match="by name"):
        check_input(retrofitted, (ids, None), {})
    with pytest.raises(FocusError, match="needs input_ids"):
        check_input(retrofitted, (), {})
    with retrofitted.focus.disabled(), pytest.raises(FocusError, match="in mode 'hard' alone"):
        check_input(retrofitted, (ids,), {})
    retrofitted.focus.mode = "soft"
    with pytest.raises(FocusError, match="in mode 'hard' alone"):
        check_input(retrofitted, (ids,), {})
