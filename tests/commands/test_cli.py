"""What all commands have in common: they start fast, and a mistake is one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from focus_retrofit.cli import COMMANDS

from .conftest import call

HEAVY = ("torch", "transformers", "sklearn", "datasets", "matplotlib", "yaml")


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_loads_nothing_heavy(name):
    words = [name, "--help"] if name else ["--help"]
    code = (
        "import sys; from focus_retrofit.cli import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
    assert "Usage:" in done.stdout


def test_every_command_is_listed_with_what_it_does():
    shown = call("--help").output
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["eval"], "Missing argument 'MODEL'"),
        (["eval", "no/such/model", "reference"], "no model 'no/such/model'"),
        (["eval", "smollm2-135m", "reference", "--methods", "full,best"], "method 'best' is not known"),
        (["eval", "smollm2-135m", "no/such/text.txt"], "no data 'no/such/text.txt'"),
        (["inspect", "smollm2-135m", "no/such/text.txt"], "no data 'no/such/text.txt'"),
        (["audit", "smollm2-135m", "--text", "no/such/text.txt"], "no data 'no/such/text.txt'"),
        (["generate", "smollm2-135m"], "give the prompt either"),
        (["generate", "smollm2-135m", "x", "--top-k", "0"], "top_k is 0"),
        (
            ["audit", "smollm2-135m", "--adapter", "smollm2-135m-mixed", "--num-groups", "4"],
            "num_groups cannot be changed",
        ),
        (["audit", "smollm2-135m", "--config", "no.yaml"], "cannot read the configuration no.yaml"),
        (["generate", "smollm2-135m", "x", "--chunk", "4Q"], "'4Q' is no number of tokens"),
        (["bench", "prefill", "smollm2-135m", "--chunk", "0"], "'0' is no number of tokens"),
        (["eval", "smollm2-135m", "reference", "--lengths", "1K,x"], "'1K,x' is not a list like 1024"),
    ],
)
def test_a_mistake_is_one_line(words, reason):
    done = call(*words)
    assert done.exit_code == 2
    assert reason in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_debug_shows_where_an_error_comes_from():
    done = call("--debug", "generate", "smollm2-135m", "x", "--top-k", "0")
    assert done.exit_code == 1
    assert done.exc_info is not None
    assert "top_k is 0" in str(done.exception)
