"""Two hundred random configurations against the oracle, and the command that runs them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from focus_kernels.soak import soak
from focus_kernels.soak.__main__ import main
from focus_kernels.soak.cases import Mismatch
from focus_kernels.soak.run import KERNELS

from .soak_models import run_model


def test_calls_and_streams() -> None:
    assert soak(175) == []


def test_models() -> None:
    assert soak(25, kinds={"model": run_model}) == []


def test_what_fails_is_named_and_can_be_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = []

    def run(pick: Random) -> str:
        drawn.append(pick.random())
        if len(drawn) == 3:
            raise Mismatch("wrong by 1")
        return "fine"

    path = tmp_path / "soak.json"
    assert main(["--count", "4", "--seed", "10", "--json", str(path)], kinds={"one": run}, command="soak") == 1
    said = capsys.readouterr()
    assert "one 12 failed: Mismatch: wrong by 1" in said.err
    assert "again: soak --seed 12 --count 1" in said.err
    assert "3 of 4 configurations" in said.out
    assert json.loads(path.read_text())["failures"] == [
        {"number": 12, "kind": "one", "message": "Mismatch: wrong by 1"}
    ]
    assert main(["--count", "1", "--seed", "12"], kinds={"one": run}, command="soak") == 0
    assert drawn[2] == drawn[4]
    assert len(set(drawn[:4])) == 4


def test_a_fault_does_not_go_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that loses a hundredth of one output, and a stream that loses one token."""
    from focus_kernels import api, stream

    plain = api.contained
    monkeypatch.setattr(api, "contained", lambda run, call: (plain(run, call)[0] * 1.01, plain(run, call)[1]))
    assert [failure.kind for failure in soak(2)] == ["call"]
    monkeypatch.setattr(stream.KeyBuckets, "crop", lambda self, counts: None)
    assert soak(8, kinds={"stream": KERNELS["stream"]})
