"""The quickstart on a small model: all parts, resumed where it stopped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from focus_retrofit import quickstart
from focus_retrofit.quickstart import Quickstart
from tests.training.tiny import texts

from .conftest import call

PARTS = ("training", "quality", "audit", "inspection", "generation", "speed")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    place = tmp_path_factory.mktemp("quickstart") / "texts.jsonl"
    place.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(40, 1100)))
    return place


def test_everything_once_then_nothing_twice(folder, data, tmp_path, monkeypatch):
    words = ["quickstart", "--fast", "--model", folder / "model", "--data", data, "--output", tmp_path / "run"]
    less = {"fit_windows": 3, "fit_steps": 40, "kernel": (1024, 2048), "prefill": (1024,), "new_tokens": 8}
    monkeypatch.setattr(quickstart, "FAST", replace(quickstart.FAST, **less))
    real = Quickstart.audit

    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Quickstart, "audit", stop)
    stopped = call(*words)
    assert stopped.exit_code == 130
    assert "What was finished is kept" in stopped.output
    kept = json.loads((tmp_path / "run" / "results.json").read_text())
    assert "quality" in kept
    assert "audit" not in kept
    monkeypatch.setattr(Quickstart, "audit", real)
    done = call(*words)
    assert done.exit_code == 0, done.output
    assert "quality: done before" in done.output
    record = json.loads((tmp_path / "run" / "results.json").read_text())
    assert set(PARTS) <= set(record)
    assert record["quality"]["rows"] == kept["quality"]["rows"]
    assert {row["part"] for row in record["speed"]} == {"kernel", "prefill"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "What each token sees" in page
    again = call(*words, "--json")
    assert json.loads(again.stdout)["minutes"] == record["minutes"], "nothing is done again"
    other = call(*[word for word in words if word != "--fast"])
    assert other.exit_code == 2
    assert "holds results of another run" in other.output
    shown = call("inspect", folder / "model", "--adapter", tmp_path / "run" / "adapter", data, "--length", 300)
    assert shown.exit_code == 0, shown.output
    assert "perplexity" in (tmp_path / "run" / "adapter" / "README.md").read_text()
