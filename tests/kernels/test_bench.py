"""The benchmark: it measures what it says, writes it down, and keeps silent when an answer is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from focus_kernels import attend_chunk
from focus_kernels.bench import __main__ as bench
from focus_kernels.bench import decode, methods, token
from focus_kernels.bench.gate import oracle_rows
from focus_kernels.bench.measure import peak_bytes
from focus_kernels.bench.problems import Layer
from focus_kernels.call import Call
from focus_kernels.choose import pick_engine


def test_writes_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    arguments = ["--lengths", "512,1K", "--backends", "cpu:sorted,cpu:chunked", "--stream", "256", "--dense"]
    assert bench.main([*arguments, "--repeats", "1", "--heads", "2/1", "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    assert record["machine"]["torch"] == torch.__version__
    assert record["command"][:3] == ["python", "-m", "focus_kernels.bench"]
    for result in record["results"]:
        assert result["seconds"] > 0
        assert result["efficiency"] == pytest.approx(result["speedup"] / result["pair_bound"])
        assert result["density"] * result["pair_bound"] == pytest.approx(1)
    methods_seen = {r["method"] for r in record["results"]}
    assert methods_seen == {
        "full",
        "full, balanced",
        "focus cpu:sorted",
        "focus cpu:chunked",
        "stream 256",
        "dense mask",
    }
    assert "efficiency" not in capsys.readouterr().err


def test_backward(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--lengths", "512", "--backward", "--repeats", "1"]) == 0
    assert "forward + backward" in capsys.readouterr().out


def test_no_speed_for_a_wrong_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = methods.focus

    def wrong(layer: Layer, backend: str) -> torch.Tensor:
        return right(layer, backend) + 1e-3

    monkeypatch.setattr(methods, "focus", wrong)
    assert bench.main(["--lengths", "512", "--repeats", "1"]) == 1
    said = capsys.readouterr()
    assert "no speed is reported: focus auto at 512 tokens: error" in said.err
    assert "focus auto" not in said.out


def test_the_gate_is_the_contract() -> None:
    from focus_kernels import reference_attention

    layer = Layer(300, q_heads=2, top_k=2, window=16, match="share")
    q, k, v = (x.double() for x in layer.tensors)
    want = reference_attention(q, k, v, layer.groups, **layer.options)
    torch.testing.assert_close(oracle_rows(layer, [0, 17, 299]), want[0][:, [0, 17, 299]])


def test_sampled_full_attention_is_the_same_attention() -> None:
    """Blocks against their whole prefix give full attention's rows; times are scaled by their share of its pairs."""
    layer = Layer(4096)
    blocks = methods.causal_in_blocks(*layer.tensors, [0, 2048])
    whole = methods.causal(*layer.tensors)
    torch.testing.assert_close(torch.cat(blocks, 2), whole[:, :, [*range(1024), *range(2048, 3072)]])
    assert methods.sampled_share(1 << 20) == pytest.approx(methods.SAMPLED_BLOCKS / 1024, rel=0.02)


def test_the_choice_of_engine_is_the_measured_one() -> None:
    """Where both engines can serve a layer, "auto" takes the one that the committed results show to be faster, or as
    fast within the noise of a few per cent."""
    compared = 0
    for path in (Path(__file__).parents[2] / "kernels" / "results").glob("*.json"):
        record = json.loads(path.read_text())
        if record["schema"] != 1:
            continue
        times: dict[str, float] = {}
        for r in record["results"]:
            if r["method"] in ("focus cpu:sorted", "focus cpu:chunked") and r["tokens"] >= 4096:
                engine = r["method"].removeprefix("focus cpu:")
                times[engine] = times.get(engine, 0.0) + r["seconds"] / r["tokens"] ** 2
        if len(times) == 2:
            shape = {name: record["layer"][name] for name in ("num_groups", "top_k", "window", "sinks", "match")}
            layer = Layer(8, **shape)
            call = Call(*layer.tensors, layer.groups, layer.problem, [], None, None)
            assert times[pick_engine(call)] <= 1.05 * min(times.values()), path.name
            compared += 1
    assert compared


def test_decode_writes_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    arguments = ["--lengths", "512,1K", "--layers", "2", "--heads", "4/2", "--head-size", "16", "--window", "32"]
    assert decode.main([*arguments, "--top-k", "2", "--repeats", "1", "--burst", "2", "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    assert record["command"][:3] == ["python", "-m", "focus_kernels.bench.decode"]
    assert [r["tokens"] for r in record["results"]] == [512, 1024]
    row = 2 * 2 * 16 * 4
    for result in record["results"]:
        (strongest,) = (full for full in result["full"] if full["strongest"])
        assert strongest["step_ms"] == min(full["step_ms"] for full in result["full"])
        assert result["speedup"] == pytest.approx(strongest["step_ms"] / result["focus_step_ms"])
        assert result["efficiency"] == pytest.approx(result["speedup"] / result["pair_bound"])
        assert result["full_bytes_read"] == (result["tokens"] + 1) * row * 2
        assert result["pair_bound"] == pytest.approx(result["full_bytes_read"] / result["focus_bytes_read"])
        expected = 4 + 33 + (result["tokens"] - 37) * 2 / 8
        assert result["focus_bytes_read"] == pytest.approx(expected * row * 2, rel=0.2)
        assert result["cache_ratio"] == pytest.approx(result["focus_cache_bytes"] / result["full_cache_bytes"])
    assert capsys.readouterr().out.count("<") == 3


def test_hopeless_ways_to_read_a_full_cache_are_left_out() -> None:
    """Only those; Focus and the strongest always have another round."""
    times = {name: [2.0, 1.0] for name in token.FULL} | {decode.COPIED: [9.0], "focus": [5.0], "focus, attend": [5.0]}
    assert decode.hopeless(times) == {decode.COPIED, f"{decode.COPIED}, attend"}
    times["sdpa"] = [1.3, 1.25]
    assert decode.hopeless(times) - {decode.COPIED, f"{decode.COPIED}, attend"} == {"sdpa", "sdpa, attend"}


def test_no_decoding_speed_for_a_wrong_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(token, "attend_chunk", lambda q, stream: attend_chunk(q, stream) * 1.01)
    assert decode.main(["--lengths", "512", "--layers", "1", "--repeats", "1"]) == 1
    said = capsys.readouterr()
    assert "no speed is reported: focus at 512 tokens: error" in said.err
    assert "focus" not in said.out


def test_peak_memory_counts_what_is_held_at_once() -> None:
    def action() -> None:
        for _ in range(3):
            torch.empty(1 << 20, dtype=torch.uint8)
        first = torch.empty(1 << 20, dtype=torch.uint8)
        second = torch.empty(1 << 20, dtype=torch.uint8)
        del first, second

    assert 2 << 20 <= peak_bytes(action) < (2 << 20) + 65536
