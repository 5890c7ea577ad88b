"""The repository's own promises: names that stay importable, commands that are written down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.11")
ROOT = Path(__file__).parents[1]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_kernels_package_of_pypi_is_not_shadowed() -> None:
    """transformers imports it when it is installed; a folder of that name stands in the repository's root."""
    pytest.importorskip("kernels")
    assert not (ROOT / "kernels" / "__init__.py").exists()
    done = python("-c", "import kernels; print(kernels.__file__)")
    assert "site-packages" in done.stdout, done.stderr


def test_focus_kernels_needs_torch_alone() -> None:
    """Nothing heavy comes along, and no backend is loaded before it is asked for."""
    code = (
        "import sys, focus_kernels; "
        "print([m for m in ('transformers', 'sklearn', 'matplotlib', 'flash_attn', 'datasets') if m in sys.modules])"
    )
    assert python("-c", code).stdout.strip() == "[]"


def test_the_readme_names_the_commands_that_ci_runs() -> None:
    assert "bash scripts/test.sh" in (ROOT / "README.md").read_text()
    assert "bash scripts/test.sh" in (ROOT / ".ci" / "run").read_text()


def test_the_readme_shows_what_the_result_files_say() -> None:
    assert python("scripts/results_table.py", "--check").returncode == 0, "run python scripts/results_table.py"


def test_versions_agree() -> None:
    import focus_kernels
    import focus_retrofit

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert focus_kernels.__version__ == focus_retrofit.__version__ == project["version"]


def test_the_pinned_torch_is_within_the_range() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (torch,) = (Requirement(d) for d in project["dependencies"] if d.startswith("torch"))
    (pin,) = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    assert pin.removeprefix("torch==") in torch.specifier
