"""FocusConfig: every field explained and checked, and JSON there and back."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focus_retrofit import FocusConfig, FocusError
from focus_retrofit.config import pick_layers


def test_every_field_has_help():
    assert all(len(field.metadata["help"]) > 10 for field in fields(FocusConfig))


@given(
    st.builds(
        FocusConfig,
        num_groups=st.integers(4, 64),
        top_k=st.integers(1, 4),
        layer_top_k=st.none() | st.dictionaries(st.integers(0, 99), st.integers(1, 4)),
        match=st.sampled_from(["probe", "share"]),
        window=st.integers(8, 512),
        sinks=st.integers(0, 8),
        balance=st.sampled_from(["potentials", "sinkhorn", "softmax"]),
        gate=st.sampled_from(["log", "multiplicative"]),
        temperature=st.sampled_from([None, 0.5, "learned", "heads"]),
        layers=st.sampled_from(["all", [0, 2], "1:,0"]),
        min_length=st.sampled_from([0, 4096, "auto"]),
    )
)
def test_json_round_trip(config):
    assert FocusConfig.from_json(config.to_json()) == config


def test_unknown_keys_of_newer_versions_are_named():
    values = {**FocusConfig().to_dict(), "warp": 9}
    with pytest.warns(UserWarning, match="warp"):
        assert FocusConfig.from_dict(values) == FocusConfig()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_groups": 0}, "num_groups is 0"),
        ({"top_k": 9}, "top_k is 9 but num_groups is 8"),
        ({"top_k": True}, "top_k is True"),
        ({"layer_top_k": {1: 9}}, "from 1 to num_groups \\(8\\)"),
        ({"layer_top_k": {-1: 2}}, "layer_top_k is {-1: 2}"),
        ({"layer_top_k": {"one": 2}}, "layer_top_k is {'one': 2}"),
        ({"layer_top_k": {1: 2.5}}, "layer_top_k is {1: 2.5}"),
        ({"layer_top_k": {1: True}}, "layer_top_k is {1: True}"),
        ({"layer_top_k": [2, 1]}, "layer_top_k is \\[2, 1\\]"),
        ({"window": 2}, "sinks is 4 but window is 2"),
        ({"window": -1}, "window is -1"),
        ({"tau": 0}, "tau is 0"),
        ({"tau": float("nan")}, "tau is nan"),
        ({"match": "near"}, "'probe', 'share'"),
        ({"balance": "luck"}, "balance is 'luck'"),
        ({"gate": "none"}, "gate is 'none'"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": "warm"}, "temperature is 'warm'"),
        ({"temperature": "input"}, "temperature_scope='all'"),
        ({"temperature_min": 2.0}, "must enclose 1"),
        ({"layers": "first"}, "layers is 'first'"),
        ({"layers": []}, "layers is empty"),
        ({"min_length": -1}, "min_length is -1"),
        ({"min_length": "fast"}, "min_length is 'fast'"),
    ],
    ids=str,
)
def test_bad_values_are_named(options, message):
    with pytest.raises(FocusError, match=message):
        FocusConfig(**options)


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_not_a_configuration(text):
    with pytest.raises(FocusError, match="not a Focus configuration"):
        FocusConfig.from_json(text)


@pytest.mark.parametrize(
    ("layers", "picked"),
    [
        ("all", None),
        ([1, 3], [1, 3]),
        ([-1], [11]),
        ("4:", list(range(4, 12))),
        ("0,2:10:4", [0, 2, 6]),
        ("-2:", [10, 11]),
    ],
    ids=str,
)
def test_layers(layers, picked):
    assert pick_layers(layers, 12) == picked


def test_layers_that_are_not_there():
    with pytest.raises(FocusError, match=r"layer 12, but the model has 12"):
        pick_layers([12], 12)
    with pytest.raises(FocusError, match="picks none"):
        pick_layers("20:", 12)
