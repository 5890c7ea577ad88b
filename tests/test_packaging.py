"""What is built is what is used: a wheel, made from the source distribution, works without the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ROOT / "focus_retrofit" / "report" / "parts"
SHIPPED = ROOT / "focus_retrofit" / "shipped"


def run(*words: object, cwd: Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**clean, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist, and the wheel that is built from it; the repository is copied, and stays clean."""
    pytest.importorskip("build", reason="pip install build")
    pytest.importorskip("setuptools", minversion="77", reason="pip install 'setuptools>=77'")
    place = tmp_path_factory.mktemp("built")
    copy = place / "source"
    skipped = shutil.ignore_patterns(".*", "runs", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=skipped)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", place / "dist", copy, cwd=place)
    return place / "dist"


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with the wheel in it, and what it depends on taken from this one."""
    place = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place.parent)
    (wheel,) = built.glob("*.whl")
    python = place / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=place)
    # its packages, not its .pth files: the editable install of this environment stays out
    (site,) = place.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return place


def names_of_the_wheel(built: Path) -> set[str]:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def test_the_wheel_has_every_module_and_every_file_they_read(built: Path) -> None:
    names = names_of_the_wheel(built)
    for package, home in (("focus_retrofit", ROOT), ("focus_kernels", ROOT / "kernels")):
        modules = {str(path.relative_to(home)) for path in (home / package).rglob("*.py")}
        assert modules <= names, "a package is missing in pyproject.toml"
        assert f"{package}/py.typed" in names
    for folder in (PARTS, SHIPPED):
        assert {str(path.relative_to(ROOT)) for path in folder.rglob("*") if path.is_file()} <= names


def test_the_wheel_has_nothing_else(built: Path) -> None:
    tops = {name.split("/")[0] for name in names_of_the_wheel(built)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"focus_kernels", "focus_retrofit"}
    assert any(name.endswith("/licenses/LICENSE") for name in names_of_the_wheel(built))


def test_the_sdist_has_what_a_build_and_a_reader_need(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "kernels/focus_kernels/api.py"} <= names


def test_an_installed_wheel_is_found_with_its_files(installed: Path, tmp_path: Path) -> None:
    code = """
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
import focus_kernels, focus_retrofit
from focus_retrofit import FocusConfig
from focus_retrofit.adapter import CARD, SHIPPED, describe_adapter, find_adapter
from focus_retrofit.report.page import _part

print(Path(focus_retrofit.__file__).parents[1], Path(focus_kernels.__file__).parents[1])
assert version("focus-retrofit") == focus_retrofit.__version__
assert all((files(package) / "py.typed").is_file() for package in (focus_kernels, focus_retrofit))
assert "<html" in _part("base.html")
(adapter,) = SHIPPED.iterdir()
found = find_adapter(adapter.name)
assert FocusConfig.from_dict(describe_adapter(found)["config"]).num_groups == 8
assert (found / CARD).is_file()
"""
    where = run(installed / "bin" / "python", "-c", code, cwd=tmp_path).split()
    (site,) = installed.glob("lib/python*/site-packages")
    assert where == [str(site), str(site)]


def test_an_installed_command_runs(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "focus-retrofit"
    shown = run(command, "--help", cwd=tmp_path)
    assert "quickstart" in shown and "Retrofit frozen causal language models" in shown
    planned = run(command, "plan", "--model", "gpt2", "--json", cwd=tmp_path)
    assert '"recommended"' in planned
