"""What the page says about numbers: plain, and honest when Focus loses."""

from __future__ import annotations

import pytest

from focus_retrofit.report import facts, theme, words
from focus_retrofit.report.embed import plain, script_json, shorten
from focus_retrofit.report.speed import curves

from . import sample


def curve(*speedups: float) -> list[dict]:
    return [{"part": "kernel", "tokens": 1024 * 2**n, "speedup": s} for n, s in enumerate(speedups)]


@pytest.mark.parametrize(
    "speedups, said, spans",
    [
        ((0.5, 0.8, 1.5), "slower than full attention up to 2,048 tokens", 1),
        ((0.5, 0.8), "slower than full attention at every length measured", 1),
        ((1.5, 2.0), "faster than full attention at every length measured", 0),
        ((0.5, 1.5, 0.9), "slower than full attention at 1,024 and 4,096 tokens", 2),
        ((1.5, 0.9), "slower than full attention at 2,048 tokens", 1),
        ((0.5,), "slower than full attention at every length measured", 0),
    ],
)
def test_where_it_loses_is_said(speedups: tuple[float, ...], said: str, spans: int) -> None:
    (found,) = curves(curve(*speedups)[::-1])
    assert found.loses == said
    assert len(found.spans) == spans


def test_the_crossover_lies_on_the_line_between_measurements() -> None:
    (found,) = curves(curve(0.5, 2.0))
    assert found.crossovers == [pytest.approx(1024 * 2**0.5)]
    assert "even near 1,400 tokens" in found.words
    assert curves(curve(0.5, 0.9))[0].crossovers == []


def test_parts_and_setups_are_curves_of_their_own() -> None:
    rows = sample.speed() + [row | {"setup": "another"} for row in sample.speed()[:2]]
    assert [x.part for x in curves(rows)] == ["kernel", "prefill", "decode", "kernel"]


def test_worse_is_called_worse() -> None:
    rows = facts.quality_rows({"quality": sample.quality()})
    assert "4.6 % worse than full attention" in facts.quality_words(rows)[0].replace(words.SPACE, " ")
    assert "6.1 % better than strided groups" in facts.quality_words(rows)[0].replace(words.SPACE, " ")
    (card, *_) = facts.cards({"quality": sample.quality()}, rows, [])
    assert card["tone"] == "bad" and card["note"].endswith("worse")


def test_a_baseline_that_wins_is_named() -> None:
    quality = sample.quality()
    quality["rows"][3]["perplexity"] = 9.0
    (first, *_) = facts.quality_words(facts.quality_rows({"quality": quality}))
    assert "worse than strided groups" in first and "does not help" in first


@pytest.mark.parametrize("ratio, said", [(0.95, "better than"), (1.0, "the same as"), (1.02, "worse than")])
def test_a_ratio_in_words(ratio: float, said: str) -> None:
    assert said in facts.against(ratio)


def test_dominance_is_named() -> None:
    layers = [{"layer": 3, "shares": [0.1, 0.9]}, {"layer": 4, "shares": [0.5, 0.5]}]
    assert "no group dominates" in facts.balance_words(layers, 2)
    assert "group 1 dominates layer 3" in facts.balance_words(layers, 4)


def test_layers_that_keep_less_than_chance_are_counted() -> None:
    layers = [{"layer": 0, "kept": 0.2, "distant": 0.25}, {"layer": 1, "kept": 0.6, "distant": 0.25}]
    assert "1 of 2 layers keep less" in facts.kept_words(layers)


def test_a_leak_and_a_loss_are_alarming() -> None:
    results = {"audit": {"checks": [{"name": "no leak from the future", "holds": False, "value": 0.35}]}}
    speed, leak = facts.cards(results, [], curves(curve(0.5, 0.8)))
    assert speed["tone"] == leak["tone"] == "bad" and leak["value"] == "0.35"
    assert "slower at every length" in speed["note"]


def test_json_cannot_end_its_element() -> None:
    text = script_json({sample.HOSTILE: [sample.HOSTILE, float("nan"), "\ud800"]})
    assert text.isascii() and not set("<>&") & set(text) and "null" in text


def test_numbers_of_numpy_become_plain() -> None:
    import numpy as np

    assert plain({"a": (np.float32(0.5), np.arange(2)), 1: float("inf")}) == {"a": [0.5, [0, 1]], "1": None}


def test_labels_are_one_short_line() -> None:
    assert shorten("a\n\x00b" + "c" * 50, 10) == "a \ufffdbccccc…"


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_its_colour(side: int) -> None:
    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    role = {name: pair[side] for name, pair in theme.ROLES.items()}
    for pair in theme.GROUPS:
        assert contrast(role["ink"], pair[side]) >= 4.5, pair
    for name in ("ink", "soft", "focus", "good", "bad"):
        for ground in ("paper", "wash"):
            assert contrast(role[name], role[ground]) >= 4.5, (name, ground)


def test_a_plot_finds_every_colour_of_the_theme() -> None:
    assert len(theme.variables()) == len(theme.ROLES) + len(theme.GROUPS)
