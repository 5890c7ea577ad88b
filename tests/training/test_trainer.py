"""FocusTrainer: every objective learns, only the adapter moves, and what is evaluated is what will be served."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import fields

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainingArguments

from focus_kernels import FocusError
from focus_retrofit import load_adapter
from focus_retrofit.training import FocusTrainer, Objective
from focus_retrofit.training.options import parse_objective
from tests.matrix import BY_NAME

from .tiny import model, windows


def arguments(folder, **changes):
    options = {
        "max_steps": 6,
        "per_device_train_batch_size": 2,
        "learning_rate": 3e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "lr_scheduler_type": "constant",
    }
    return TrainingArguments(str(folder), **{**options, **changes})


def trained(folder, retrofitted=None, objective="lm-hard", data=None, **changes):
    retrofitted = model() if retrofitted is None else retrofitted
    trainer = FocusTrainer(
        retrofitted,
        arguments(folder, **changes),
        objective=objective,
        train_dataset=windows() if data is None else data,
        eval_dataset=windows(count=3),
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("objective", ["mass", "distill", "lm", "lm-hard", "mass + 0.5*distill", "lm + lm-hard"])
def test_every_objective_goes_down(tmp_path, objective):
    retrofitted = model()
    frozen = {name: tensor.clone() for name, tensor in retrofitted.state_dict().items()}
    same = torch.utils.data.Subset(windows(), [0, 1])  # the same two windows in every step
    trainer = trained(tmp_path, retrofitted, objective, same, max_steps=25, learning_rate=1e-2)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert sum(losses[-5:]) < sum(losses[:5])
    assert retrofitted.focus.mode == "hard" and retrofitted.focus.watch is None
    assert all(torch.equal(tensor, frozen[name]) for name, tensor in retrofitted.state_dict().items())
    terms = set(parse_objective(objective))
    assert all(terms <= set(line) for line in trainer.state.log_history if "loss" in line)


@pytest.mark.parametrize("text", ["", "lm +", "lm + lm", "0*lm", "perplexity", "-1*lm", "lm * 2", "1e*lm"])
def test_objectives_that_are_not(text):
    with pytest.raises(FocusError, match="is not understood"):
        parse_objective(text)


def test_distillation_of_an_equal_model_is_zero():
    retrofitted = model(top_k=4).train()
    example = {name: x[None] for name, x in windows()[0].items()}
    loss = Objective("distill")(retrofitted, retrofitted.focus, example, 1.0)
    assert abs(float(loss.detach())) < 1e-5


def test_training_routes_by_the_batch_and_serves_by_the_average():
    retrofitted = model(balance_decay=0.5)
    focus = retrofitted.focus
    example = {name: x[None] for name, x in windows()[0].items() if name != "labels"}
    first, saved = {}, {i: focus.router(i).potentials.clone() for i in focus.layer_indices}
    retrofitted.eval()(**example, use_cache=False)
    assert all(torch.equal(focus.router(i).potentials, saved[i]) for i in saved)
    retrofitted.train()
    with torch.no_grad():
        retrofitted(**example, use_cache=False)
    assert all(torch.equal(focus.router(i).potentials, saved[i]) for i in saved)
    retrofitted(**example, use_cache=False)
    for i in focus.layer_indices:
        router = focus.router(i)
        shares = torch.softmax(router.logits(torch.zeros(1, 1, router.projection.shape[0])), -1)  # batch's, still
        assert shares.shape == (1, 1, 4) and not router.batch.requires_grad
        assert torch.equal(router.potentials, router.batch)  # the first batch is taken whole
        first[i] = router.batch.clone()
    other = {name: x[None] for name, x in windows()[5].items() if name != "labels"}
    retrofitted(**other, use_cache=False)
    for i in focus.layer_indices:
        router = focus.router(i)
        torch.testing.assert_close(router.potentials, first[i] + (router.batch - first[i]) * 0.5)
    for line in focus.report().layers:
        assert max(line.shares) < 0.5
    for learns in (False, False, True, False):  # whatever came before
        with torch.set_grad_enabled(learns):
            retrofitted(**example, use_cache=False)
        assert all((focus.router(i).batch is not None) == learns for i in focus.layer_indices)


def test_gradients_do_not_reach_the_router_through_potentials():
    """softmax(scores + b) with b constant: moving every score of a group alike must have a gradient."""
    retrofitted = model().train()
    router = retrofitted.focus.router(0)
    hidden = torch.randn(1, 30, router.projection.shape[0])
    logits = router.logits(hidden)
    (slope,) = torch.autograd.grad(logits.sum(), router.centroids)
    projected = (hidden.float() @ router.projection.float()).sum((0, 1)) / router.config.tau
    torch.testing.assert_close(slope, projected.expand_as(slope).to(slope), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("objective", ["lm-hard", "lm", "lm-hard + mass + balance", "distill"])
def test_gradient_checkpointing_changes_nothing(tmp_path, objective):
    found = []
    for checkpointing in (False, True):
        retrofitted = model()
        trained(tmp_path, retrofitted, objective, max_steps=3, gradient_checkpointing=checkpointing)
        found.append(retrofitted.focus.tensors())
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, msg=name)


def test_checkpointing_is_not_reentrant_under_either_of_its_names(tmp_path):
    retrofitted, names = model(), {field.name for field in fields(TrainingArguments)}
    name = next(f"{x}_checkpointing_kwargs" for x in ("activation", "gradient") if f"{x}_checkpointing_kwargs" in names)
    trained(tmp_path, retrofitted, max_steps=1, gradient_checkpointing=True, **{name: {"use_reentrant": True}})
    layer = retrofitted.get_decoder().layers[0]
    assert layer._gradient_checkpointing_func.keywords == {"use_reentrant": False}


def test_two_passes_and_checkpointing_are_refused(tmp_path):
    with pytest.raises(FocusError, match="two forward passes"):
        trained(tmp_path, objective="lm + lm-hard", gradient_checkpointing=True)


@pytest.mark.parametrize("objective", ["lm-hard", "mass", "distill"])
def test_accumulated_batches_are_one_large_batch(tmp_path, objective):
    """With balance='softmax': potentials are a batch's own, and two small batches have two."""
    found = []
    for size, accumulate in ((4, 1), (2, 2)):
        retrofitted = model(balance="softmax")
        changes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulate, "max_steps": 3}
        trained(tmp_path, retrofitted, objective, **changes)
        found.append(retrofitted.focus.tensors())
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, atol=1e-5, rtol=1e-4, msg=name)


def test_mixed_precision(tmp_path):
    retrofitted = BY_NAME["Llama"].make(dtype=torch.float32)
    from focus_retrofit import retrofit

    from .tiny import CONFIG

    trainer = trained(tmp_path, retrofit(retrofitted, CONFIG), bf16=True)
    assert all(math.isfinite(line["loss"]) for line in trainer.state.log_history if "loss" in line)
    assert {p.dtype for p in retrofitted.focus.trainable_parameters()} == {torch.float32}


@pytest.mark.parametrize("family", ["GPT2", "Gemma2", "DeepseekV3", "GptOss", "Qwen3"])
def test_families_train(tmp_path, family):
    retrofitted = model(family)
    before = {name: tensor.clone() for name, tensor in retrofitted.focus.tensors().items()}
    trainer = trained(tmp_path, retrofitted, "lm-hard + mass", max_steps=2)
    assert all(math.isfinite(line["loss"]) for line in trainer.state.log_history if "loss" in line)
    moved = [name for name, tensor in retrofitted.focus.tensors().items() if not torch.equal(tensor, before[name])]
    assert all(name in moved for name in before if "temperature" not in name)


def test_evaluation_is_of_the_hard_model_and_says_how_groups_do(tmp_path):
    retrofitted = model()
    trainer = trained(tmp_path, retrofitted, eval_strategy="steps", eval_steps=3, objective="lm")
    held = windows(count=3)
    with torch.no_grad():
        rows = [retrofitted.eval()(**{n: x[None] for n, x in example.items()}, use_cache=False) for example in held]
    want = torch.stack([row.loss for row in rows]).mean()
    found = trainer.evaluate()
    assert found["eval_loss"] == pytest.approx(float(want), rel=1e-2)  # means over windows of slightly unequal counts
    assert found["eval_perplexity"] == pytest.approx(math.exp(found["eval_loss"]))
    for kind in ("dominance", "confidence", "stability"):
        layers = [found[f"eval_{kind}/layer_{i:02}"] for i in retrofitted.focus.layer_indices]
        assert all(0 <= x <= 1 for x in layers)
    assert found["eval_stability"] == 1.0  # nothing moved since the last evaluation
    assert 0 < found["eval_density"] < 1


def test_a_dominant_and_a_dead_group_are_warned_about(tmp_path, caplog):
    retrofitted = model()
    for index in retrofitted.focus.layer_indices:
        retrofitted.focus.router(index).potentials[0] += 1e4
    trainer = FocusTrainer(retrofitted, arguments(tmp_path), train_dataset=windows(), eval_dataset=windows(count=3))
    with caplog.at_level(logging.WARNING, "focus_retrofit.training.health"):
        trainer.evaluate()
    assert "one group holds 100% of the tokens" in caplog.text
    assert "all but dead" in caplog.text


def test_a_checkpoint_holds_the_adapter_alone(tmp_path):
    retrofitted = model()
    trained(tmp_path, retrofitted, save_strategy="steps", save_steps=6)
    folder = tmp_path / "checkpoint-6"
    names = {path.name for path in folder.iterdir()}
    assert {"focus_config.json", "focus_adapter.safetensors", "trainer_state.json", "optimizer.pt"} <= names
    assert not any(name.startswith(("model", "pytorch_model", "training_args")) for name in names)
    again = load_adapter(BY_NAME["Llama"].make(), str(folder))
    assert all(torch.equal(tensor, again.focus.tensors()[n]) for n, tensor in retrofitted.focus.tensors().items())


def test_early_stop_keeps_the_best(tmp_path):
    retrofitted = model()
    trainer = FocusTrainer(
        retrofitted,
        arguments(
            tmp_path,
            max_steps=50,
            learning_rate=10.0,  # certain to get worse
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="steps",
            save_steps=1,
            load_best_model_at_end=True,
            metric_for_best_model="loss",
        ),
        train_dataset=windows(),
        eval_dataset=windows(count=3),
        callbacks=[EarlyStoppingCallback(3)],
    )
    trainer.train()
    assert trainer.state.global_step < 50
    assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric, rel=1e-6)


def test_tensorboard_gets_the_terms_and_the_groups(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = tmp_path / "logs"
    import os

    os.environ["TENSORBOARD_LOGGING_DIR"] = str(logs)
    try:
        trained(tmp_path, report_to=["tensorboard"], eval_strategy="steps", eval_steps=3)
    finally:
        del os.environ["TENSORBOARD_LOGGING_DIR"]
    events = next(logs.rglob("events*"))
    reader = EventAccumulator(str(events.parent))
    reader.Reload()
    tags = set(reader.Tags()["scalars"])
    assert {"train/lm-hard", "eval/perplexity", "eval/dominance", "eval/dominance/layer_00"} <= tags


def test_nan_ends_with_a_message_and_leaves_the_adapter(tmp_path):
    retrofitted = model()
    retrofitted.focus.save_pretrained(tmp_path / "good")
    with torch.no_grad():
        retrofitted.lm_head.weight.fill_(float("nan"))
    with pytest.raises(FocusError, match="the loss is nan at step 0"):
        trained(tmp_path / "run", retrofitted)
    load_adapter(BY_NAME["Llama"].make(), str(tmp_path / "good"))


def test_texts_within_the_window_are_refused(tmp_path):
    with pytest.raises(FocusError, match="nothing to learn"):
        trained(tmp_path, data=windows(length=9))


def test_a_model_without_focus_is_refused(tmp_path):
    with pytest.raises(FocusError, match="call retrofit"):
        FocusTrainer(BY_NAME["Llama"].make(), arguments(tmp_path), train_dataset=windows())


def test_a_full_disk_leaves_the_last_whole_checkpoint(tmp_path, monkeypatch):
    retrofitted = model()
    real, count = torch.save, []

    def save(*args, **options):
        count.append(1)
        if len(count) > 4:
            raise OSError(28, "No space left on device")
        return real(*args, **options)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(FocusError, match=r"No space left on device; the last whole one is .*checkpoint-2"):
        trained(tmp_path, retrofitted, save_strategy="steps", save_steps=2)
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2"]
    load_adapter(BY_NAME["Llama"].make(), str(tmp_path / "checkpoint-2"))
    trainer = FocusTrainer(retrofitted, arguments(tmp_path), train_dataset=windows())
    trainer.train(resume_from_checkpoint=True)
    assert json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())["global_step"] == 2
    assert trainer.state.global_step == 6


def test_changing_the_future_changes_no_past_logit_after_training(tmp_path):
    retrofitted = model()
    trained(tmp_path, retrofitted)
    retrofitted.eval()
    ids = windows()[0]["input_ids"][None]
    changed = ids.clone()
    changed[:, 30:] = (changed[:, 30:] + 3) % 26 + 1
    with torch.no_grad():
        a, b = (retrofitted(x, use_cache=False).logits[:, :30] for x in (ids, changed))
    assert torch.equal(a, b)


@pytest.mark.parametrize("router_lr", [None, 0.5])
def test_routers_temperatures_and_weights_have_rates_of_their_own(tmp_path, router_lr):
    retrofitted = model()
    if router_lr:
        retrofitted.focus.unfreeze()
    trainer = FocusTrainer(retrofitted, arguments(tmp_path), router_lr=router_lr, train_dataset=windows())
    rates = {id(p): group["lr"] for group in trainer.create_optimizer().param_groups for p in group["params"]}
    rate = router_lr or trainer.args.learning_rate
    trained_ones = [p for p in retrofitted.parameters() if p.requires_grad]
    routers = {id(p): p.dim() for p in retrofitted.focus.parameters()}
    assert rates.keys() == {id(p) for p in trained_ones}
    for p in trained_ones:
        own = {None: trainer.args.learning_rate, 0: 10 * rate}.get(routers.get(id(p)), rate)
        assert rates[id(p)] == pytest.approx(own)
