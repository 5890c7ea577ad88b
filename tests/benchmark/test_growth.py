"""Exponents of what is known to be a power."""

from __future__ import annotations

import pytest

from focus_retrofit.benchmark import cost_growth, fit_exponent, verdicts
from focus_retrofit.benchmark.labels import apart, common

from .made import SETUP, made

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)


@pytest.mark.parametrize("power", [0.0, 0.4, 1.0, 1.9, 2.0])
def test_powers_are_found_exactly(power: float) -> None:
    assert fit_exponent((n, 3e-7 * n**power) for n in LENGTHS) == pytest.approx(power, abs=1e-12)
    assert fit_exponent((n, 3e-7 * n**power) for n in (1000, 7000, 9000)) == pytest.approx(power, abs=1e-12)


def test_the_longer_half_is_fitted() -> None:
    """What a call costs by itself does not flatten the line; three lengths are the least."""
    points = [(n, n**1.7 if n >= 8192 else 9e9) for n in LENGTHS]
    assert fit_exponent(points) == pytest.approx(1.7)
    assert fit_exponent(points[1:]) == pytest.approx(1.7)
    assert fit_exponent(points[3:]) == pytest.approx(1.7)
    assert fit_exponent(points[4:]) is None and fit_exponent([]) is None
    assert fit_exponent([*points, (32768, 1e12)]) == pytest.approx(1.7)  # of a length twice, the better


def test_rows_give_exponents_of_time_and_memory() -> None:
    rows = [made(n, 1e-7 * n**2, 1e-6 * n**1.5, memory=(n * 1000, n * 500)) for n in LENGTHS]
    (found,) = cost_growth(rows)
    assert found["part"] == "prefill" and found["setup"] == SETUP and found["lengths"] == [8192, 32768]
    assert found["full_seconds"] == pytest.approx(2) and found["focus_seconds"] == pytest.approx(1.5)
    assert found["full_bytes"] == pytest.approx(1) and found["focus_bytes"] == pytest.approx(1)
    (line,) = verdicts(rows)
    assert "time ~ n^2.00 with full attention, n^1.50 with Focus, from 8,192 to 32,768 tokens" in line
    (few,) = cost_growth(rows[:2])
    assert few["focus_seconds"] is None and few["lengths"] is None and "n^" not in verdicts(rows[:2])[0]


def test_setups_are_told_apart() -> None:
    setups = ["a, b, explore = 1, fp32", "a, b, explore = 8, fp32", "a, b, fp32"]
    assert apart(setups) == ["explore = 1", "explore = 8", "plain"] and common(setups) == "a, b, fp32"
    assert apart(["a, b"]) == [""] and common(["a, b"]) == "a, b"
