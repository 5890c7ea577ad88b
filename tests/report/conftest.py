"""Pages are written once; plots take a second each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import sample


@pytest.fixture(scope="session")
def results() -> dict[str, Any]:
    return sample.results()


@pytest.fixture(scope="session")
def report(results: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib", reason="pip install focus-retrofit[report]")
    from focus_retrofit.report import write_report

    return write_report(results, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="session")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib", reason="pip install focus-retrofit[report]")
    from focus_retrofit.report import write_report

    return write_report(sample.hostile(), tmp_path_factory.mktemp("hostile"))
