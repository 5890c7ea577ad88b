"""Plans of reading and writing long texts: bytes by hand, the paper's table, the order things must come in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_kernels import KeyBuckets
from focus_kernels.plan import visible_pairs as counted_pairs
from focus_kernels.problem import Problem
from focus_retrofit import FocusConfig, FocusError
from focus_retrofit.cli import main
from focus_retrofit.parallel.traffic import expected_traffic
from focus_retrofit.planning import GPU, GPUS, MODELS, find_gpu, find_model, plan_inference
from focus_retrofit.planning.advice import advice
from focus_retrofit.planning.costs import (
    attention_work,
    causal_pairs,
    density,
    focus_work,
    gpu_rates,
    read_keys,
    visible_pairs,
)
from focus_retrofit.planning.holding import cache_bytes, weight_bytes
from focus_retrofit.planning.inference import Serving, Way
from focus_retrofit.planning.layouts import Layout, layouts

ROOT = Path(__file__).parents[2]
ONE = FocusConfig(num_groups=8, top_k=1)
LENGTHS = (16384, 32768, 65536, 262144, 1048576)
PAPER = {4: (1.5, 2.2, 3.0, 4.0, 4.1), 8: (1.8, 3.1, 4.7, 7.6, 8.6)}  # over full FlashAttention, H100, k = 1
K128, M1 = 128 * 1024, 1024**2


def serving(model: str, context: int, gpus: int, **options: Any) -> Serving:
    (found,) = plan_inference(model, contexts=[context], gpus=[gpus], **{"gpu": "h100", "focus": ONE, **options})
    return found


# bytes


def test_the_cache_of_a_7b_at_128k() -> None:
    plain = 2 * 32 * 32 * 128 * 131072 * 2
    assert cache_bytes(MODELS["llama-2-7b"], K128, "bf16") == plain == 68_719_476_736
    groups = 32 * 131072 * 2  # one int16 per token and layer
    assert cache_bytes(MODELS["llama-2-7b"], K128, "bf16", ONE) == plain * 17 / 16 + groups
    assert cache_bytes(MODELS["llama-2-7b"], K128, "fp8") == plain / 2


def test_the_cache_of_a_70b_has_its_key_heads_only() -> None:
    model = MODELS["llama-2-70b"]
    plain = 2 * 80 * 8 * 128 * M1 * 2
    assert cache_bytes(model, M1, "bf16") == plain
    assert cache_bytes(model, M1, "bf16", None, Layout(tensor=8)) == plain / 8
    assert cache_bytes(model, M1, "bf16", None, Layout(tensor=16, node=16)) == plain / 8  # a head is not cut
    assert cache_bytes(model, M1, "bf16", None, Layout(tensor=8, sequence=8)) == plain / 64


def test_weights_by_kind() -> None:
    model = MODELS["llama-2-7b"]
    assert weight_bytes(model, "bf16") == 2 * model.parameters
    assert weight_bytes(model, "bf16", tensor=4) == 2 * model.parameters / 4
    matrices = model.layers * model.layer_matrices
    assert weight_bytes(model, "nf4") == pytest.approx(0.516 * matrices + 2 * (model.parameters - matrices))


def test_a_7b_at_128k_on_one_gpu() -> None:
    (way,) = serving("7b", K128, 1).ways
    assert way.name == "one" and not way.full.fits and not way.focus.fits
    assert way.full.memory.weights == 2 * 6_738_415_616
    assert way.full.memory.cache == 68_719_476_736
    chunk = 2 * 8192 * (3 * 4096 + 3 * 11008)  # residual stream and MLP
    assert way.full.memory.activations == chunk
    assert way.full.memory.workspace == pytest.approx(1e9 + 4 * 32000 + 0.1 * (chunk + 4 * 32000))
    # time: 2 FLOPs per number of the layers and token, 4 per pair and number of a query, of 60 % of 989 TFLOPS
    speed = 0.6 * 989e12
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert way.full.prefill.projections == pytest.approx((2 * matrices * K128 + 2 * 4096 * 32000) / speed)
    assert way.full.prefill.attention == pytest.approx(32 * 4 * 4096 * K128 * (K128 + 1) / 2 / speed)
    assert way.full.prefill.communication == way.focus.prefill.communication == 0
    token = (2 * 6_738_415_616 + 68_719_476_736) / (0.8 * 3350e9) + 32 * 10 * 4e-6
    assert way.full.token_seconds == pytest.approx(token)
    keys = 132 + (K128 - 132) / 8
    focus = (2 * 6_738_415_616 + 68_719_476_736 * keys / K128) / (0.8 * 3350e9) + 32 * 18 * 4e-6
    assert way.focus.token_seconds == pytest.approx(focus)


def test_what_gpus_send_each_other() -> None:
    model, gpu = MODELS["llama-2-70b"], GPUS["h100-80"]
    sums = Layout(tensor=8).all_reduce_seconds(gpu, model, M1)
    assert sums == pytest.approx(160 * (2 * M1 * 8192 * 2 * 7 / 8 / 300e9 + 15e-6))
    assert Layout().all_reduce_seconds(gpu, model, M1) == 0
    assert Layout(sequence=4).ring_bytes(model, M1, 2) == 3 / 4 * M1 * 2 * 8 * 128 * 2
    near, far = Layout(sequence=8), Layout(sequence=16)
    assert near.sequence_link(gpu) == 300e9 and far.sequence_link(gpu) == 50e9
    sent = expected_traffic(M1, 8, 8, 1, 8, 1, 128, 128, 4, 2)["total"] / 8
    assert Layout(tensor=8, sequence=8).focus_bytes(model, M1, ONE, 2) == sent
    assert Layout().focus_bytes(model, M1, ONE, 2) == 0


def test_a_cache_on_one_team_takes_room_for_all_of_it() -> None:
    found = serving("7b", M1, 64)
    assert found.way("sp64").focus.fits and found.way("sp64").focus.token_seconds is None
    best = found.way("tp8 x sp8")
    assert found.best is best
    assert best.focus.token_seconds == serving("7b", M1, 8).way("tp8").focus.token_seconds
    team = cache_bytes(MODELS["llama-2-7b"], M1, "bf16", ONE, Layout(tensor=8))
    assert best.focus.gather == pytest.approx(team * 7 / 8 / 50e9)


def test_caches_are_as_large_as_those_of_the_toolkit() -> None:
    """Of one layer, read in chunks: never above the formula by more than a chunk, and not far below."""
    tokens, heads, size = 6144, 2, 16
    model = replace(MODELS["llama-2-7b"], layers=1, heads=heads, kv_heads=heads, head_dim=size)
    stream = KeyBuckets(num_groups=8, window=128, sinks=4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        key = torch.randn(1, heads, 1024, size, generator=generator)
        stream.append(key, key, torch.randint(0, 8, (1, 1024, 1), generator=generator))
    held = stream.memory()
    said = cache_bytes(model, tokens, "fp32", ONE)
    assert held == pytest.approx(said, rel=0.05)


# attention


@pytest.mark.parametrize("groups", PAPER)
def test_the_papers_speeds_are_met(groups: int) -> None:
    model, rates = MODELS["llama-2-7b"], gpu_rates(GPUS["h100-80"])
    focus = FocusConfig(num_groups=groups, top_k=1)
    for tokens, wanted in zip(LENGTHS, PAPER[groups], strict=True):
        full = attention_work(model, causal_pairs(tokens)).seconds(rates)
        speed = full / focus_work(model, tokens, focus).seconds(rates)
        assert speed == pytest.approx(wanted, rel=0.15), tokens
        assert speed < 1 / density(tokens, focus)  # the plan promises no more than the pairs allow
    short = [attention_work(model, causal_pairs(n)).seconds(rates) for n in (1024, 4096)]
    assert all(full < focus_work(model, n, focus).seconds(rates) for full, n in zip(short, (1024, 4096), strict=True))


@pytest.mark.parametrize(("groups", "top_k", "match"), [(4, 1, "probe"), (8, 2, "probe"), (4, 2, "share")])
def test_pairs_are_those_of_even_groups(groups: int, top_k: int, match: str) -> None:
    focus = FocusConfig(num_groups=groups, top_k=top_k, match=match, window=16, sinks=0)
    generator = torch.Generator().manual_seed(0)
    member = torch.rand(2048, groups, generator=generator).topk(top_k).indices
    pairs = counted_pairs(member, Problem(groups, top_k, 16, 0, match, 1.0, None, "distant", None, None))
    assert visible_pairs(2048, focus) == pytest.approx(pairs, rel=0.02)


def test_all_groups_are_full_attention() -> None:
    everything = FocusConfig(num_groups=4, top_k=4)
    assert visible_pairs(5000, everything) == causal_pairs(5000)
    assert read_keys(5000, everything) == 5000 == read_keys(5000, FocusConfig(window=5000))
    assert visible_pairs(100, ONE) == causal_pairs(100)  # within the window


# the order things must come in

names, contexts = st.sampled_from(sorted(MODELS)), st.integers(1024, 2 * M1)
counts = st.sampled_from([1, 2, 4, 8, 16, 32])
configs = st.builds(
    FocusConfig, num_groups=st.sampled_from([4, 8, 16]), top_k=st.integers(1, 3), window=st.sampled_from([64, 128, 512])
)


@settings(max_examples=60, deadline=None)
@given(names, contexts, counts, configs)
def test_more_gpus_never_need_more_memory_each(model: str, context: int, gpus: int, focus: FocusConfig) -> None:
    facts = MODELS[model]
    few, many = (serving(model, context, n, focus=focus) for n in (gpus, 2 * gpus))
    by_layout = {(way.layout.tensor, way.layout.sequence): way for way in many.ways}
    for way in few.ways:
        tensor, sequence = way.layout.tensor, way.layout.sequence
        wider = by_layout.get((2 * tensor, sequence))
        longer = by_layout.get((tensor, 2 * sequence)) if sequence > 1 else None  # alone, chunks are read
        for more in (wider, longer):
            if more is None:
                continue
            for side in ("full", "focus"):
                assert getattr(more, side).memory.total <= getattr(way, side).memory.total * (1 + 1e-9)
    assert all(facts.heads % way.layout.tensor == 0 for way in many.ways)


def times(way: Way) -> list[float]:
    sides = (way.full, way.focus)
    return [value for side in sides for value in (side.first_token, side.memory.total, side.gather)]


@settings(max_examples=60, deadline=None)
@given(names, contexts, st.integers(1, 100_000), counts, configs)
def test_longer_texts_never_take_less(model: str, context: int, more: int, gpus: int, focus: FocusConfig) -> None:
    short, long = (serving(model, n, gpus, focus=focus) for n in (context, context + more))
    for before, after in zip(short.ways, long.ways, strict=True):
        for one, other in zip(times(before), times(after), strict=True):
            assert one <= other * (1 + 1e-9)
        for side in ("full", "focus"):
            seconds = [getattr(way, side).token_seconds for way in (before, after)]
            assert seconds[1] is None or (seconds[0] is not None and seconds[0] <= seconds[1])


@settings(max_examples=40, deadline=None)
@given(names, contexts, counts, st.sampled_from(["bf16", "fp8", "fp32"]))
def test_the_best_way_fits_and_none_is_sooner(model: str, context: int, gpus: int, cache: str) -> None:
    found = serving(model, context, gpus, cache=cache)
    fitting = [way for way in found.ways if way.focus.fits]
    assert (found.best is None) == (not fitting)
    if found.best is not None and found.best.focus.token_seconds is not None:
        ready = found.best.focus.first_token + found.best.focus.gather
        writing = [way.focus for way in fitting if way.focus.token_seconds is not None]
        assert ready == min(side.first_token + side.gather for side in writing)
        assert advice(found) is None
    else:
        assert advice(found) is not None


def test_every_way_uses_all_gpus_and_no_team_leaves_its_node() -> None:
    for gpus in (1, 2, 6, 8, 64):
        found = layouts(MODELS["llama-2-70b"], gpus)
        assert found and all(one.gpus == gpus and one.tensor <= 8 for one in found)
    assert [one.name for one in layouts(MODELS["llama-2-7b"], 16)] == ["tp8 x sp2", "tp4 x sp4", "tp2 x sp8", "sp16"]


def test_slower_links_and_networks_take_longer() -> None:
    for name, change in (("tp8", {"link": 10}), ("tp8 x sp8", {"network": 1})):
        gpus = 8 if name == "tp8" else 64
        fast, slow = (serving("70b", K128, gpus, gpu=find_gpu("h100", **own)).way(name) for own in ({}, change))
        assert slow.focus.first_token > fast.focus.first_token
        assert slow.full.first_token > fast.full.first_token


def test_groups_save_traffic_against_a_ring() -> None:
    layout, model = Layout(sequence=16), MODELS["llama-2-7b"]
    assert layout.focus_bytes(model, M1, ONE, 2) < layout.ring_bytes(model, M1, 2) / 2


# what would fit


def test_advice_names_what_fits() -> None:
    found = serving("7b", K128, 1)
    line = advice(found)
    assert line is not None and "--cache fp8 (one, 5" in line and "--gpus 2 (tp2" in line and "spilled cache" in line
    assert serving("7b", K128, 1, cache="fp8").best is not None and serving("7b", K128, 2).best is not None
    assert advice(serving("7b", K128, 2)) is None
    tiny = advice(serving("70b", M1, 1, gpu=GPU("gpu", 1, 30)))
    assert tiny is not None and "larger GPUs" in tiny


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "int3"}, "fp8"),
        ({"weights": "int3"}, "nf4"),
        ({"chunk": 0}, "chunk is 0"),
        ({"gpus": [0]}, "gpus is 0"),
        ({"contexts": [0]}, "context is 0"),
        ({"gpu": "abacus"}, "h100-80"),
    ],
)
def test_mistakes_name_the_way_out(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FocusError, match=message):
        plan_inference("7b", **{"contexts": [K128], **options})


def test_short_names() -> None:
    assert find_model("70B") is MODELS["llama-2-70b"] and find_model("7b") is MODELS["llama-2-7b"]
    assert find_gpu("H100") == GPUS["h100-80"]
    assert find_gpu("a100") == GPUS["a100-80"] and find_gpu("h100", hbm=2000).hbm == 2000


# the page


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def page_row(found: Serving, model: str) -> str:
    best, context = found.best, {K128: "128K", M1: "1M"}[found.ask.context]
    cells = [model, context, str(found.ask.gpus)]
    if best is None:
        return " | ".join([*cells, "nothing fits", *["-"] * 5])
    full, focus = best.full, best.focus
    cells += [best.name, f"{focus.memory.total / 1e9:.0f}", f"{number(full.first_token)} / {number(focus.first_token)}"]
    rates = [number(side.tokens_per_second) for side in (full, focus)]
    cells += [f"{best.prefill_speedup:.1f}", f"{best.attention_share:.0%}"]
    return " | ".join([*cells, "-" if rates == ["-", "-"] else " / ".join(rates)])


def test_the_pages_table_is_the_plan() -> None:
    page = (
        (ROOT / "docs" / "planning.md").read_text().partition("<!-- plan -->")[2].partition("<!-- end of plan -->")[0]
    )
    lines = [line.strip("| ") for line in page.strip().splitlines()[2:]]
    expected = [
        page_row(found, model)
        for model in ("7b", "13b", "70b")
        for found in plan_inference(model, contexts=[K128, M1], gpus=[1, 8, 64], gpu="h100", focus=ONE)
    ]
    assert lines == expected


def test_the_pages_traffic_is_the_formulas() -> None:
    page = (ROOT / "docs" / "planning.md").read_text()
    for name, heads, kv_heads in (
        ("32 query and 32 key heads (7B)", 32, 32),
        ("64 query and 8 key heads (70B)", 64, 8),
    ):
        (line,) = (line for line in page.splitlines() if name in line)
        cells = [float(cell) for cell in line.strip("| ").split(" | ")[1:]]
        found = [expected_traffic(M1, n, 8, 1, heads, kv_heads, 128, 128, 4, 2) for n in (2, 4, 8, 16, 64)]
        assert cells == pytest.approx([one["ring"] / one["total"] for one in found], rel=0.03)


# the command


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["plan", *words])


def test_the_table_has_a_line_per_way() -> None:
    done = call("--model", "70b", "--context", "128K,1M", "--gpus", "1,8,64", "--gpu", "H100", "--top-k", "1")
    assert done.exit_code == 0, done.output
    assert "…" not in done.stdout and "not measured by us" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    for context, name in ((K128, "128K"), (M1, "1M")):
        for gpus in (1, 8, 64):
            found = serving("70b", context, gpus)
            for way in found.ways:
                words = way.name.split()
                start = [name, str(gpus), *words]
                (line,) = (line for line in lines if line[: len(start)] == start and line[len(start)] != "x")
                assert f"{way.focus.memory.total / 1e9:.1f}" in line and f"{way.prefill_speedup:.2f}" in line
                assert (line[-1] == "best") == (way.name == getattr(found.best, "name", None))
    assert "1,048,576 tokens on 1 x h100-80 do not fit" in done.stdout


def test_json_is_the_plan() -> None:
    done = call("--model", "7b", "--context", "1M", "--gpus", "8,64", "--cache", "fp8", "--json")
    found = plan_inference("7b", contexts=[M1], gpus=[8, 64], cache="fp8")
    assert json.loads(done.stdout) == json.loads(json.dumps([one.to_dict() for one in found]))


def test_short_prompts_stay_dense() -> None:
    done = call("--model", "7b", "--context", "4K", "--gpu", "h100")
    assert "Full attention reads faster at 4K" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "7b", "--context", "1M", "--steps", "5"], "--steps is for Training"),
        (["--model", "7b", "--cache", "fp8"], "--cache is for Inference"),
        (["--model", "7b", "--fit-to", "4K"], "--fit-to is for Check"),
        (["--model", "7b", "--gpus", "1,8"], "takes one number"),
        (["--model", "7b", "--gpus", "many", "--context", "1M"], "1,8,64"),
        (["--model", "7b", "--context", "long"], "no number of tokens"),
        (["--context", "1M"], "--model"),
        (["--check", "x.json", "--context", "1M"], "exclude each other"),
        (["--check", "no-such-file.json"], "cannot read no-such-file.json"),
    ],
)
def test_mistakes_are_one_line_and_code_2(words: list[str], message: str) -> None:
    done = call(*words)
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output
    assert len(done.stderr.splitlines()) == 1
