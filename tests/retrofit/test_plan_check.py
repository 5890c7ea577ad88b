"""The cost model against benchmark files: what it predicts of rows that no rate was fitted on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from focus_retrofit import FocusConfig, FocusError
from focus_retrofit.benchmark.records import write_bench
from focus_retrofit.benchmark.rows import make_row
from focus_retrofit.cli import main
from focus_retrofit.parallel.traffic import KINDS, expected_traffic
from focus_retrofit.planning import MODELS
from focus_retrofit.planning.calibrate import measure_rates
from focus_retrofit.planning.check import check_bench
from focus_retrofit.planning.costs import Rates, Work, causal_pairs, density, focus_work, read_keys
from focus_retrofit.planning.measured import read_rows
from focus_retrofit.planning.traffic import check_traffic

ROOT = Path(__file__).parents[2]
ONE = FocusConfig(num_groups=8, top_k=1)
M1 = 1024**2
SMOL = MODELS["smollm2-135m"]
TRUE = Rates(matmul=1e11, flash=5e10, bandwidth=1e10, call=2e-5)


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["plan", *words])


def measured(part: str, tokens: int, layers: int = 30, groups: int = 8, below: int = 0, slower: float = 1.0) -> Any:
    """A row as a machine of the rates TRUE would give it, full attention `slower` than that."""
    focus, model = FocusConfig(num_groups=groups, top_k=1), replace(SMOL, layers=layers)
    share = density(tokens, focus)
    pairs = layers * causal_pairs(tokens)
    attention = 4 * model.query_width * pairs / TRUE.flash
    moved = focus_work(model, tokens, focus).times(layers) + Work()
    added = 2 * moved.moved / TRUE.bandwidth + moved.calls * TRUE.call
    if part == "decode":
        fixed = 4 * model.parameters / TRUE.bandwidth + 10 * layers * TRUE.call
        cache = 2 * layers * model.key_width * tokens * 4 / TRUE.bandwidth
        share = read_keys(tokens, focus) / tokens
        full, sparse = fixed + cache, fixed + cache * share + 8 * layers * TRUE.call
        attention = cache
    else:
        beside = (2 * layers * model.layer_matrices * tokens + 2 * model.embedding) / TRUE.matmul
        router = 2 * layers * 16 * (576 + groups) * tokens / TRUE.matmul
        full, sparse = beside + attention, beside + router + attention * share + added
    dense = f", dense below {below}" if below else ""
    return make_row(
        part,
        tokens,
        {"full: sdpa": [full * slower], "focus": [full * slower if tokens < below else sparse]},
        default="full: sdpa",
        density=share,
        attention_share=attention / full,
        memory=None,
        setup=f"SmolLM2-135M-Instruct, {layers} layers, K = {groups}, k = 1, window 128{dense}, float32",
        dtype="float32",
        device="cpu",
        threads=2,
    )


def layer(tokens: int) -> Any:
    work = focus_work(replace(SMOL, layers=1), tokens, ONE)
    full = 4 * 576 * causal_pairs(tokens) / TRUE.flash
    focus = full * density(tokens, ONE) + 2 * work.moved / TRUE.bandwidth + work.calls * TRUE.call
    return make_row(
        "kernel",
        tokens,
        {"full: one call": [full + TRUE.call], "focus": [focus]},
        default="full: one call",
        density=density(tokens, ONE),
        attention_share=1.0,
        memory=None,
        setup="one layer, 9/3 heads of 64, K = 8, k = 1, window 128",
        dtype="float32",
        device="cpu",
        threads=2,
    )


def rows(*lengths: int) -> list[Any]:
    found = [measured(part, tokens) for part in ("prefill", "decode") for tokens in lengths]
    return [*found, *(layer(tokens) for tokens in lengths)]


def test_a_machine_that_keeps_to_the_formulas_is_predicted_exactly() -> None:
    """Fitted on 2K and 4K, the rest follows, other depths and numbers of groups included."""
    all_rows = [*rows(2048, 4096, 32768, M1), measured("prefill", M1, layers=2), measured("prefill", 65536, groups=4)]
    found = check_bench(all_rows, fit_to=4096)
    assert len(found.predictions) == len(all_rows) and not found.skipped
    assert {row.tokens for row in found.predictions if row.fitted} == {2048, 4096}
    assert found.worst == pytest.approx(1, abs=1e-3)


def test_given_rates_predict_without_any_row() -> None:
    found = check_bench(rows(2048, 32768), rates=TRUE)
    assert not any(row.fitted for row in found.predictions)
    assert found.worst == pytest.approx(1, abs=0.02)


def test_what_the_formulas_miss_is_seen() -> None:
    """A machine whose full attention slows down on long texts: the ratio says by how much."""
    rows = [measured("prefill", tokens, slower=1 + (tokens > 8192)) for tokens in (2048, 4096, 8192, 65536)]
    found = check_bench(rows)
    (last,) = (row for row in found.predictions if row.tokens == 65536)
    assert last.full_ratio == pytest.approx(1 / 2, rel=1e-2) and last.focus_ratio == pytest.approx(1, rel=1e-2)
    assert found.worst == pytest.approx(2, rel=1e-2)
    assert last.speedup_predicted == pytest.approx(last.speedup / 2, rel=2e-2)


def test_rows_below_the_crossover_are_dense() -> None:
    lengths = (1024, 2048, 4096, 8192, 16384)
    found = check_bench([measured("prefill", n, below=2048) for n in lengths], fit_to=4096)
    assert found.predictions[0].focus_predicted == found.predictions[0].full_predicted
    assert found.worst == pytest.approx(1, abs=0.05)


def test_too_few_lengths_are_skipped_and_said() -> None:
    found = check_bench([*rows(2048, 4096), *(measured("decode", n) for n in (8192, 16384))])
    assert {row.part for row in found.predictions} == {"decode"}
    assert len(found.skipped) == 2 and "--calibrate" in found.skipped[0]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"setup": "SmolLM2-135M, 30 layers"}, {}, "does not state K"),
        ({"setup": "no-such-model, 30 layers, K = 8, k = 1, window 128"}, {}, "--model"),
        ({}, {"fit_to": 2048}, "fit-to is 2048"),
    ],
)
def test_a_check_that_cannot_be_made_says_why(change: Any, options: Any, message: str) -> None:
    rows = [{**measured("prefill", tokens), **change} for tokens in (2048, 4096, 8192)]
    with pytest.raises(FocusError, match=message):
        check_bench(rows, **options)


def test_a_file_without_rows_is_no_check() -> None:
    with pytest.raises(FocusError, match="no rows"):
        check_bench([])


def test_rates_of_this_machine() -> None:
    rates = measure_rates(seconds=0.05)
    assert 1e8 < rates.matmul < 1e15 and 1e7 < rates.flash < 1e15
    assert 1e8 < rates.bandwidth < 1e13 and 0 < rates.call < 1e-2


def test_the_kernels_own_results_are_predicted() -> None:
    """From what was measured up to 16K, a million tokens; and a token's attention at 64K from that at 4K and 16K."""
    results = ROOT / "kernels" / "results"
    rows = [row for name in ("k8-k1", "long", "decode") for row in read_rows(results / f"{name}.json")]
    found = check_bench(rows, fit_to=16384)
    assert not found.skipped
    assert {row.tokens for row in found.predictions if not row.fitted} == {32768, 65536, 131072, 262144, M1}
    assert found.worst < 1.3
    caches = [(row.memory, row.memory_predicted) for row in found.predictions if row.part == "decode"]
    assert len(caches) == 3 and all(said == pytest.approx(held, rel=0.05) for held, said in caches)
    others = [row for name in ("k4-k2", "k16-k2") for row in read_rows(results / f"{name}.json")]
    assert check_bench([*rows, *others], fit_to=16384).worst < 1.5  # rates of K = 8 with other groups


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"rows": 1}')
    with pytest.raises(FocusError, match=r"other\.json"):
        read_rows(tmp_path / "other.json")
    with pytest.raises(FocusError, match=r"no\.json"):
        read_rows(tmp_path / "no.json")
    backward = ROOT / "kernels" / "results" / "backward.json"
    with pytest.raises(FocusError, match="backward"):
        read_rows(backward)


def test_traffic_is_compared_kind_by_kind(tmp_path: Path) -> None:
    arguments = {"tokens": 4096, "ranks": 4, "num_groups": 8, "top_k": 1, "heads": 9, "kv_heads": 3, "head_size": 64}
    arguments |= {"window": 128, "sinks": 4}
    expected = expected_traffic(**arguments, bytes_per_number=4)
    sent = {kind: 30 * expected[kind] for kind in KINDS}
    row = {**arguments, "bytes_per_number": 4, "layers": 30, "sent": sent}
    (same,) = check_traffic([row])
    assert same["ratio"] == pytest.approx(1) and same["ratios"] == pytest.approx(dict.fromkeys(sent, 1))
    assert same["less_than_ring"] == pytest.approx(expected["ring"] / expected["total"])
    (more,) = check_traffic([{**row, "sent": {**sent, "keys": 2 * sent["keys"]}}])
    assert more["ratios"]["keys"] == pytest.approx(0.5) and more["ratios"]["queries"] == pytest.approx(1)
    path = tmp_path / "traffic.json"
    path.write_text(json.dumps({"command": "x", "rows": [{**row, "sent": {**sent, "total": sum(sent.values())}}]}))
    done = call("--check", str(path))
    assert done.exit_code == 0 and done.stdout.count("1.00") == 1 + len(KINDS)
    assert json.loads(call("--check", str(path), "--json").stdout)["traffic"][0]["ratio"] == pytest.approx(1)
    with pytest.raises(FocusError, match="window"):
        check_traffic([{name: value for name, value in row.items() if name != "window"}])


def test_the_check_of_a_file(tmp_path: Path) -> None:
    path = write_bench(tmp_path / "bench.json", rows(2048, 4096, 8192, 65536), "bench")
    done = call("--check", str(path), "--fit-to", "4K")
    assert done.exit_code == 0, done.output
    assert "Of 6 rows that no rate was fitted on, the worst is missed by a factor of 1.00" in done.stdout
    record = json.loads(call("--check", str(path), "--model", "smollm2-135m", "--json").stdout)
    assert len(record["rows"]) == 12 and record["worst"] == pytest.approx(1, abs=1e-3)
