"""`compare`: one table over all methods and measures, which goes on where it was stopped."""

from __future__ import annotations

import json

import pytest

from focus_retrofit.evaluation import comparison

from .conftest import call

WORDS = ["--lengths", "48,96", "--windows", 2, "--train-windows", 1, "--steps", 1]


def compare(small, output, *more):
    return call("compare", *small.model, small.folder / "data.jsonl", *WORDS, "--output", output, *more)


def test_all_methods_in_one_table(small, tmp_path):
    pytest.importorskip("peft", reason="LoRA comes in the package peft")
    done = compare(small, tmp_path, "--also", small.text)
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "results.json").read_text())
    assert record["overlap"][str(small.folder / "data.jsonl")] == 0
    rows = record["table"]
    assert len(rows) == 15
    assert rows[0]["density"] == 1
    kinds = {row["method"]: row["kind"] for row in rows}
    assert {"full attention", "Focus, k = 1", "Focus, k = 2", "MoBA blocks, k = 1", "H2O, k = 1"} <= set(kinds)
    assert sum(kind == "weights" for kind in kinds.values()) == 2
    assert sum(row["engine"] == "dense mask" for row in rows) == 4
    titles = [title for title in rows[1] if "tokens" in title]
    assert len(titles) == 4  # two texts, two lengths
    assert all("%" in rows[1][title] for title in titles)
    text = (tmp_path / "table.md").read_text()
    assert text.count("\n") == 17
    assert (tmp_path / "pareto.png").stat().st_size > 10_000
    assert "| mask |" in text
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["table"] == rows
    assert "cells" not in json.dumps(summary)


def test_goes_on_where_it_was_stopped(small, tmp_path, monkeypatch):
    words = ["--methods", "full,focus,moba,routing"]
    real, read = comparison.evaluate, []

    def stopping(model, windows, methods, **options):
        def on_cell():
            options["on_cell"]()
            read.append(1)
            if len(read) == 3:
                raise KeyboardInterrupt

        return real(model, windows, methods, **{**options, "on_cell": on_cell})

    monkeypatch.setattr(comparison, "evaluate", stopping)
    assert compare(small, tmp_path, *words).exit_code == 130
    assert (tmp_path / "learned" / "routing.safetensors").is_file()
    done = compare(small, tmp_path, *words)
    assert done.exit_code == 0, done.output
    assert len(read) == 2 * 2 * 4  # each window and length once for each method
    compare(small, tmp_path, "--methods", "full,focus,moba,routing,wide")  # one more joins
    assert len(read) == 2 * 2 * 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "focus,full"], "begin with 'full'"),
        (["--lengths", "x"], "is not a list like 1024"),
        (["--windows", 3, "--methods", "full,best"], "is not known"),
    ],
)
def test_mistakes_are_named(small, tmp_path, words, message):
    done = compare(small, tmp_path, *words)
    assert done.exit_code == 2
    assert message in done.output


def test_a_text_that_repeats_itself_is_refused(small, tmp_path):
    line = "a b c d e f g h i j k l m n o p q r s t u v w x y z" * 3
    (tmp_path / "same.jsonl").write_text("".join(json.dumps({"text": line + "\n" + line}) + "\n" for _ in range(20)))
    done = call("compare", *small.model, tmp_path / "same.jsonl", *WORDS, "--output", tmp_path / "run")
    assert done.exit_code == 2
    assert "are in its training text" in done.output
