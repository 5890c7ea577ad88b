"""What is written is true of what is there: links, commands, imports, messages, versions."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from focus_retrofit import __version__
from focus_retrofit.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
SKIPPED = {".venv", "runs", "build", "dist"}
PAGES = sorted(
    path for path in ROOT.rglob("*.md") if not SKIPPED & {*path.relative_to(ROOT).parts} and "shipped" not in path.parts
)
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As code hosts make them of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        place = (page.parent / file).resolve() if file else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(target)
    assert not broken


def commands_of(page: Path) -> list[list[str]]:
    """The words of every `focus-retrofit` and `python -m focus_retrofit` in a page's shell blocks."""
    found = []
    for line in "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines():
        match = re.search(r"(?:focus-retrofit|-m focus_retrofit)\s+(.*)", line.split(" #")[0])
        if match:
            found.append(shlex.split(re.split(r"\|\|?|&&|>|;", match[1])[0]))
    return found


def parse(command: click.Command, words: list[str], parent: click.Context | None = None) -> None:
    """What click makes of the words, without running anything."""
    context = command.make_context(command.name, list(words), parent=parent)
    if isinstance(command, click.Group):
        rest = [*context.protected_args, *context.args] if hasattr(context, "protected_args") else context.args
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, name
        parse(found, rest, context)


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_have_the_options_that_are_shown(page, tmp_path, monkeypatch):
    (tmp_path / "focus.yaml").write_text("num_groups: 4\n")
    monkeypatch.chdir(tmp_path)
    for words in commands_of(page):
        parse(main, words)


def test_every_command_is_described():
    front, page = (ROOT / "README.md").read_text(), ROOT / "docs" / "cli.md"
    assert all(f"`focus-retrofit {name}`" in front for name in COMMANDS)
    assert set(COMMANDS) <= anchors(page)
    shown = {words[0] for words in commands_of(page)}
    assert shown == set(COMMANDS)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda p: str(p.name))
def test_python_is_python_and_its_imports_exist(page):
    for code in blocks(page, "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom | ast.Import):
                exec(ast.unparse(node), {})


def test_messages_are_those_that_are_raised():
    """Fixed parts of the messages in troubleshooting, found in the sources."""
    files = [*(ROOT / "focus_retrofit").rglob("*.py"), *(ROOT / "kernels" / "focus_kernels").rglob("*.py")]
    source = "".join(path.read_text() for path in files)
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # strings over several lines
    source = re.sub(r"\{[^{}]*\}", "...", source)
    table = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## Messages")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| *")]
    assert len(cells) > 10
    parts = [part for cell in cells for message in re.findall(r"\*([^*]+)\*", cell) for part in message.split("...")]
    parts = [part.strip(" ':") for part in parts if len(part.strip(" ':")) > 5]
    assert [part for part in parts if part not in source] == []


def test_versions_are_current():
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_repository_speaks_of_the_project_alone():
    """No path of somebody's machine, no host of a package index."""
    hosts = re.compile(r"/(?:home|root|Users)/\w|\bpypi\.org/simple|/opt/pypi", re.IGNORECASE)
    texts = [
        path for path in ROOT.rglob("*") if path.suffix in {".md", ".py", ".sh", ".toml", ".json", ".yaml", ".txt"}
    ]
    own = [path for path in texts if not SKIPPED & {*path.relative_to(ROOT).parts} and path != Path(__file__)]
    assert [str(path.relative_to(ROOT)) for path in own if hosts.search(path.read_text())] == []
