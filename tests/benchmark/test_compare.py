"""What moved, and what is noise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from focus_retrofit import FocusError
from focus_retrofit.benchmark import compare_benches, comparison
from focus_retrofit.benchmark.noise import error_of_best
from focus_retrofit.cli import main

from .made import SETUP, made, record


def shown(what: Any) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def verdicts(found: dict[str, Any]) -> dict[tuple[str, int], str]:
    return {(row["part"], row["tokens"]): row["verdict"] for row in found["rows"]}


def test_steady_times_are_told_by_the_threshold() -> None:
    old = record(*(made(n, [4.0, 4.0, 4.0], [2.0, 2.0, 2.0]) for n in (1024, 2048, 4096, 8192)))
    ratios = {1024: 1.04, 2048: 1.06, 4096: 1 / 1.04, 8192: 1 / 1.5}
    new = record(*(made(n, [4.0] * 3, [2.0 / ratio] * 3) for n, ratio in ratios.items()))
    found = compare_benches(old, new)
    assert verdicts(found) == {
        ("prefill", 8192): "slower",
        ("prefill", 2048): "faster",
        ("prefill", 1024): "same",
        ("prefill", 4096): "same",
    }
    assert [row["tokens"] for row in found["rows"]][:2] == [8192, 2048]  # what moved most first
    for row in found["rows"]:
        assert row["moved"]["speedup"]["ratio"] == pytest.approx(ratios[row["tokens"]])
        assert row["moved"]["full_seconds"]["verdict"] == "same"
        focus = {"faster": "faster", "slower": "slower", "same": "same"}[row["verdict"]]
        assert row["moved"]["focus_seconds"]["verdict"] == focus
    assert set(verdicts(compare_benches(old, new, 0.0)).values()) == {"faster", "slower"}
    assert set(verdicts(compare_benches(old, new, 0.6)).values()) == {"same"}


def test_noise_is_no_change() -> None:
    """The same change of the best times counts where the other times were near, not where they were far."""
    quiet, loud = [2.0, 2.02, 2.04], [2.0, 2.6, 3.2]
    assert error_of_best(quiet) == pytest.approx(0.005) and error_of_best(loud) == pytest.approx(0.15)
    assert error_of_best([2.0]) is None
    full = [4.0, 4.0, 4.0]
    for times, verdict in ((quiet, "faster"), (loud, "same")):
        found = compare_benches(record(made(64, full, times)), record(made(64, full, [x / 1.2 for x in times])))
        assert found["rows"][0]["verdict"] == verdict
    assert found["rows"][0]["moved"]["speedup"]["margin"] == pytest.approx(2 * 0.15 * 2**0.5)
    once = compare_benches(record(made(64, 4.0, 2.0)), record(made(64, 4.0, 1.5)))
    assert once["rows"][0]["verdict"] == "faster" and once["rows"][0]["moved"]["speedup"]["error"] is None
    assert "timed once" in shown(comparison(once))


def test_memory_and_density() -> None:
    old = made(64, 4.0, 2.0, memory=(100, 100))
    new = {**made(64, 4.0, 2.0, memory=(100, 120)), "density": 0.125}
    (row,) = compare_benches(record(old), record(new))["rows"]
    moved = {name: one["verdict"] for name, one in row["moved"].items()}
    assert moved == {
        "speedup": "same",
        "focus_seconds": "same",
        "full_seconds": "same",
        "memory": "more",
        "focus_bytes": "more",
        "full_bytes": "same",
        "density": "less",
    }
    (row,) = compare_benches(record(old), record(made(64, 4.0, 2.0)))["rows"]
    assert "memory" not in row["moved"]  # measured on one side alone


def test_rows_of_one_file_are_listed() -> None:
    old = record(made(64, 4.0, 2.0), made(128, 4.0, 2.0), made(64, 1.0, 1.0, part="decode"))
    new = record(made(64, 4.0, 2.0), made(64, 1.0, 2.0, setup="another"))
    found = compare_benches(old, new)
    assert [(row["part"], row["tokens"]) for row in found["only_first"]] == [("prefill", 128), ("decode", 64)]
    assert found["only_second"] == [{"part": "prefill", "tokens": 64, "setup": "another"}]
    text = shown(comparison(found))
    assert "only in the first: decode at 64" in text and "only in the second: prefill at 64 tokens, another" in text
    with pytest.raises(FocusError, match="no row in common"):
        compare_benches(old, record(made(64, 1.0, 2.0, setup="another")))
    with pytest.raises(FocusError, match="threshold is -1"):
        compare_benches(old, new, -1)


def test_seconds_of_other_machines_are_not_judged() -> None:
    old, new = record(made(64, 4.0, 2.0)), record(made(64, 8.0, 2.0), threads=4)
    (row,) = compare_benches(old, new)["rows"]
    assert row["verdict"] == "faster" and not row["same_machine"]
    assert row["moved"]["full_seconds"]["verdict"] is None and row["moved"]["full_seconds"]["ratio"] == 2
    assert "only speedups compare" in shown(comparison(compare_benches(old, new)))
    assert "only speedups compare" not in shown(comparison(compare_benches(old, old)))


def test_exponents_are_compared() -> None:
    old = record(*(made(n, n**2 / 1e6, n**1.5 / 1e5) for n in (1024, 2048, 4096)))
    new = record(*(made(n, n**2 / 1e6, n**1.2 / 1e5) for n in (1024, 2048, 4096)))
    (one,) = compare_benches(old, new)["growth"]
    assert one["focus_seconds"] == pytest.approx([1.5, 1.2]) and one["full_seconds"] == pytest.approx([2, 2])
    assert "n^1.50, then n^1.20" in shown(comparison(compare_benches(old, new)))


def test_command(tmp_path: Any) -> None:
    """Exit codes, JSON, and thresholds in either form."""
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, focus in zip(files, (2.0, 2.5), strict=True):
        file.write_text(json.dumps(record(made(64, 4.0, focus))))

    def call(*words: str) -> Any:
        return CliRunner().invoke(main, ["bench", "compare", *map(str, files), *words])

    assert call().exit_code == 0 and "1 slower" in call().output and SETUP.split(",")[0] not in call().output
    assert call("--fail-on-slower").exit_code == 1
    assert call("--fail-on-slower", "--threshold", "30%").exit_code == 0
    assert call("--fail-on-slower", "--threshold", "0.3").exit_code == 0
    assert json.loads(call("--json", "--fail-on-slower").output)["rows"][0]["verdict"] == "slower"
    wrong = call("--threshold", "few")
    assert wrong.exit_code == 2 and "threshold is 'few'" in wrong.output
