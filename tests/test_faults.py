"""Killed, out of disk, out of memory: what is on disk is whole, and what is said is short."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from focus_kernels.files import fill_atomically, is_leftover, write_atomically
from focus_retrofit.memory import ADVICE, out_of_memory

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and forks of Linux")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """All that suffers, in one process and its children."""
    folder = tmp_path_factory.mktemp("faults")
    words = [sys.executable, "-m", "tests.run_faults", "killed,full_disk,no_memory,two_at_once", str(folder)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_kill_leaves_whole_files_and_the_next_write_cleans_up(found):
    """Every file was read after every kill (tests/run_faults.py), and belonged together."""
    killed = found["killed"]
    assert killed["kills"] == 40
    assert killed["states"] > 1, "nothing was ever written: the kills came too early to say anything"
    assert killed["left"] == []
    assert killed["last"] == [7, 7, 7]


def test_a_full_disk_leaves_the_old_files(found):
    assert found["full_disk"] == {"codes": [1, 1, 1, 1], "numbers": [0, 0, 0], "left": []}


def test_out_of_memory_leaves_the_old_files_and_says_what_helps(found):
    said = found["no_memory"].pop("said")
    assert found["no_memory"] == {"codes": [1, 3], "numbers": [0, 0, 0], "left": []}
    assert said.startswith("Error: out of memory, ")
    assert said.strip().endswith(ADVICE)
    assert len(said.splitlines()) == 1


def test_two_that_measure_at_once_lose_no_more_than_a_measurement(found):
    both = found["two_at_once"]
    assert both["codes"] == [0, 0]
    assert both["right"]
    assert both["complete"]
    assert both["kept"] >= 30
    assert both["left"] == []


def test_what_others_write_takes_their_place_whole(tmp_path):
    """A writer that fails half-way changes nothing; one that does not replaces what it wrote, and nothing else."""
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "b.txt").write_text("other")

    def fails(folder):
        (folder / "a.txt").write_text("half")
        raise MemoryError

    with pytest.raises(MemoryError):
        fill_atomically(tmp_path, fails)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"

    def writes(folder):
        (folder / "deep").mkdir()
        (folder / "deep" / "c.txt").write_text("new")
        (folder / "a.txt").write_text("new")

    fill_atomically(tmp_path, writes)
    assert (tmp_path / "a.txt").read_text() == (tmp_path / "deep" / "c.txt").read_text() == "new"
    assert (tmp_path / "b.txt").read_text() == "other"
    assert not any(map(is_leftover, tmp_path.iterdir()))


def test_only_what_the_dead_left_is_taken_away(tmp_path):
    import platform
    import re

    host = re.sub("[^A-Za-z0-9-]", "-", platform.node())
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    gone = tmp_path / f".x.json.abc.{host}.{done.pid}.tmp"
    kept = [
        tmp_path / f".x.json.abc.{host}.{os.getpid()}.tmp",  # at work
        tmp_path / f".x.json.abc.another-host.{done.pid}.tmp",
        tmp_path / f".y.json.abc.{host}.{done.pid}.tmp",
        tmp_path / ".x.json.notes",
    ]
    for path in (gone, *kept):
        path.write_text("")
    write_atomically(tmp_path / "x.json", "{}")
    assert sorted(tmp_path.iterdir()) == sorted([*kept, tmp_path / "x.json"])


@pytest.mark.parametrize(
    ("error", "amount"),
    [
        (MemoryError(), ""),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ""),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has"), "2.68 GB"),
    ],
    ids=["python", "system", "gpu"],
)
def test_every_way_to_say_that_memory_ran_out(error, amount):
    told = out_of_memory(error)
    assert told.startswith("out of memory")
    assert amount in told


def test_other_errors_are_what_they_are():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    assert "4000000.00 GB were asked for" in out_of_memory(caught.value)
    for error in (RuntimeError("a bug"), ValueError("can't allocate memory"), OSError(errno.ENOSPC, "full")):
        assert out_of_memory(error) is None


def test_nothing_writes_results_in_place():
    """All that is written goes through focus_kernels/files.py; a file that another library writes is named here."""
    import re

    direct = re.compile(
        r"\.write_text\(|\.write_bytes\(|json\.dump\(|save_file\(|torch\.save\(|open\([^)]*[\"'][wax]b?\+?[\"']"
    )
    allowed = {"kernels/focus_kernels/files.py"}
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("focus_retrofit", "kernels", "scripts")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in allowed
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if direct.search(line)
    ]
    assert found == []
