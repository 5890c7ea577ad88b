"""A training step's rows, and that a wrong output or gradient has no speed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from focus_kernels import gated
from focus_retrofit import FocusConfig, FocusError
from focus_retrofit.benchmark import BenchConfig, bench_step, bench_training, run_bench, sample_ids, training_steps
from focus_retrofit.benchmark.rows import FIELDS, FOCUS, FULL
from focus_retrofit.benchmark.training_gate import check_training
from focus_retrofit.benchmark.training_steps import Routed, hard_work, steps_of

FEW: dict[str, Any] = {"repeats": 1, "progress": False}
SMALL = FocusConfig(num_groups=4, top_k=1, window=8, sinks=2)


def layer(focus: FocusConfig, **options: Any) -> Routed:
    sizes = (focus.num_groups, focus.top_k, focus.window, focus.sinks, focus.match)
    return Routed(0, *sizes, q_heads=4, kv_heads=2, size=16, **options)


def test_rows_of_a_layer() -> None:
    rows = bench_training([64, 300], SMALL, (4, 2), 16, **FEW)
    names = ["lm-hard, explore = 1", "lm-hard, explore = 4 (all)", "lm, soft gate"]
    shape = "one layer, 4/2 heads of 16, K = 4, k = 1, window 8"
    assert [(row["tokens"], row["setup"]) for row in rows] == [(n, f"{shape}, {x}") for n in (64, 300) for x in names]
    for row in rows:
        assert list(row) == list(FIELDS) and row["part"] == "training"
        assert set(row["all"]) == {FULL + "sdpa", FOCUS}
        assert row["speedup"] == pytest.approx(row["full_seconds"] / row["focus_seconds"])
        assert row["memory"] == pytest.approx(row["focus_bytes"] / row["full_bytes"]) and row["full_bytes"] > 0
    assert len({row["full_seconds"] for row in rows[3:]}) == 1  # of the same run
    sparse, explored, soft = rows[3:]
    assert sparse["density"] == explored["density"] < 0.5 and soft["density"] == 1
    assert sparse["bound"] > 1 > explored["bound"] > soft["bound"]  # what is explored costs a backward


def test_one_explore_where_one_is_asked() -> None:
    rows = bench_training(
        [64], FocusConfig(num_groups=4, top_k=1, window=8, explore=2), **FEW, soft=False, memory=False
    )
    assert [row["setup"].rpartition(", ")[2] for row in rows] == ["explore = 2"]
    assert rows[0]["memory"] is None and rows[0]["focus_bytes"] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "options",
    [{"top_k": 1}, {"top_k": 2}, {"top_k": 2, "match": "share"}, {"top_k": 1, "gate": "multiplicative", "explore": 2}],
    ids=str,
)
def test_right_gradients_pass(options: dict[str, Any], dtype: torch.dtype) -> None:
    focus = FocusConfig(num_groups=4, window=8, sinks=2, **options)
    assert check_training(layer(focus, dtype=dtype), steps_of(focus), focus) < 0.02


def test_a_wrong_gradient_has_no_speed(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output is right: only the gradient of the assignments is a little off."""
    right = gated.assignment_gradient
    monkeypatch.setattr(gated, "assignment_gradient", lambda *given: right(*given) * 1.01)
    with pytest.raises(FocusError, match=r"no speed is reported: lm-hard.* its gradient of scores differs"):
        bench_training([64], SMALL, (4, 2), 16, **FEW)
    with pytest.raises(FocusError, match="no speed is reported"):
        bench_step(model, tokenizer, [64], **FEW)


def test_a_wrong_output_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that is one token short."""
    right, rows = training_steps.gated_attention, []

    def wrong(*given: Any, window: int, **options: Any) -> Any:
        return right(*given, window=window - 1, **options)

    monkeypatch.setattr(training_steps, "gated_attention", wrong)
    with pytest.raises(FocusError, match=r"no speed is reported: lm-hard.* its output differs"):
        bench_training([64], SMALL, (4, 2), 16, on_row=rows.append, **FEW)
    assert rows == []


def test_a_wrong_soft_gate_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = training_steps.soft_attention
    monkeypatch.setattr(training_steps, "soft_attention", lambda *given, **options: right(*given, **options) * 1.01)
    with pytest.raises(FocusError, match="no speed is reported: lm, soft gate"):
        bench_training([64], SMALL, (4, 2), 16, **FEW)


def test_a_whole_step(model: Any, tokenizer: Any) -> None:
    """Rows of the same schema; the model is afterwards as it was, to the bit."""
    before = {name: x.clone() for name, x in model.state_dict().items()}
    flags = [p.requires_grad for p in model.parameters()]
    ids = sample_ids(tokenizer, 96)
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits
    rows = bench_step(model, tokenizer, [96], **FEW)
    assert [row["setup"].split("step of ")[1] for row in rows] == [
        f"lm-hard, explore = {x}, full: gradient to the inputs, float32" for x in ("1", "4 (all)")
    ]
    for row in rows:
        assert list(row) == list(FIELDS) and row["part"] == "training" and row["density"] < 0.8
        assert {FULL + "sdpa", FOCUS} < set(row["all"]) and row["memory"] > 0
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == flags and all(p.grad is None for p in model.parameters())
    assert not model.training and model.focus.config.explore is None and model.focus.enabled
    with torch.no_grad():
        assert torch.equal(model(ids, use_cache=False).logits, logits)


def test_a_step_reaches_routers_and_with_full_attention_the_inputs(model: Any, tokenizer: Any) -> None:
    """What is timed is a whole backward: gradients arrive in the first layer's router, and at the embeddings."""
    from focus_retrofit.benchmark import step

    ids = sample_ids(tokenizer, 96)
    arrived: list[Any] = []
    with step._training(model):
        first = model.focus.router(0).projection
        hook = first.register_post_accumulate_grad_hook(lambda p: arrived.append(p.grad.abs().sum() > 0))
        step._router_step(model, ids)
        hook.remove()
        assert arrived == [True]
        with step._to_inputs(model, "sdpa"):
            shown: list[Any] = []
            embeddings = model.get_input_embeddings()
            hook = embeddings.register_forward_hook(lambda module, given, out: shown.append(out))
            step._base_step(model, ids)
            hook.remove()
        assert shown[0].grad is not None and shown[0].grad.abs().sum() > 0
        assert all(p.grad is None for p in model.parameters())


def test_training_is_a_part(model: Any, tokenizer: Any) -> None:
    rows = run_bench(
        model, tokenizer, BenchConfig(parts="training", lengths="64", repeats=1, memory=False), progress=False
    )
    assert [row["part"] for row in rows] == ["training"] * 5
    assert sum("step of" in row["setup"] for row in rows) == 2


def test_work_is_that_of_the_pairs() -> None:
    """Everything seen and nothing explored is full attention; exploring all adds a backward over distant pairs."""
    assert hard_work(4096, 1.0, 0, 8, 128, 64) == 1
    one, all_ = (hard_work(1 << 20, 0.125, explore, 8, 128, 64) for explore in (1, 8))
    assert (all_ - 0.125) / (one - 0.125) == pytest.approx(8)
    assert all_ - 0.125 == pytest.approx((6 * (64 + 16) + 4 * 64) / (14 * 64), rel=1e-3)
    assert hard_work(64, 1.0, 8, 8, 128, 64) == 1  # all of it local
