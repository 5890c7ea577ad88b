"""An audit finds what is wrong, and nothing where nothing is."""

from __future__ import annotations

import pytest
import torch

from focus_kernels import FocusError
from focus_retrofit.audit import audit
from tests.matrix import FAMILIES
from tests.training.tiny import model as make_model

IDS = torch.randint(1, 27, (96,), generator=torch.Generator().manual_seed(3))


def failed(found):
    return {check.name for check in found.checks if check.holds is False}


def made(family="Llama", **changes):
    model = make_model(family, temperature=None, **changes)
    model.focus.balance(IDS[None])
    return model


@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
def test_a_sound_adapter_holds(family):
    found = audit(made(family), IDS, largest_group=0.9)
    assert failed(found) <= {"no dead group"}, found
    assert len(found.checks) == 11


def test_a_leak_is_found():
    model = made()
    model.focus.config.balance = "sinkhorn"
    assert {"no leak from the future, hard", "no leak from the future, soft"} <= failed(audit(model, IDS))


def test_broken_tensors_are_found():
    model = made()
    with torch.no_grad():
        model.focus.router(1).centroids[0] = float("nan")
    found = audit(model, IDS)
    assert "finite adapter" in failed(found)
    assert not found.holds


def test_a_collapsed_router_is_found():
    model = made()
    with torch.no_grad():
        model.focus.router(0).potentials[2] = 1e4
    assert {"balanced groups", "no dead group"} <= failed(audit(model, IDS))


def test_a_base_that_would_train_is_found():
    model = made()
    model.focus.unfreeze()
    assert failed(audit(model, IDS, largest_group=1.0)) >= {"frozen base"}


def test_a_wrong_attention_is_found(monkeypatch):
    from focus_retrofit import attention

    true = attention.attend_whole

    def wrong(query, key, value, routed, focus, options):
        out, chosen = true(query, key, value, routed, focus, options)
        return (out, chosen) if focus.backend == "reference" else (out * 1.01, chosen)

    monkeypatch.setattr(attention, "attend_whole", wrong)
    assert {"exact attention", "equals the base at k = K"} <= failed(audit(made(), IDS))


def test_what_does_not_apply_is_said():
    model = make_model(temperature=0.9, temperature_scope="all")
    found = {check.name: check for check in audit(model, IDS).checks}
    assert found["equals the base within the window"].holds is None
    assert found["equals the base at k = K"].holds is None


def test_audits_leave_the_model_as_it_was():
    model = made()
    with torch.inference_mode():
        before = model(IDS[None], use_cache=False).logits
    flags = [p.requires_grad for p in model.parameters()]
    audit(model, IDS)
    with torch.inference_mode():
        assert torch.equal(model(IDS[None], use_cache=False).logits, before)
    assert [p.requires_grad for p in model.parameters()] == flags
    assert model.focus.mode == "hard"


def test_mistakes_are_named():
    model = made()
    with pytest.raises(FocusError, match="at least 48 tokens"):
        audit(model, IDS[:20])
    with pytest.raises(FocusError, match="no Focus attention"):
        audit(model.focus.unload(), IDS)
