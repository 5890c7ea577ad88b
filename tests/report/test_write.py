"""The files: whole, self-contained, and without markup from outside."""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from focus_retrofit import FocusError
from focus_retrofit.report import write_inspection, write_report
from focus_retrofit.report.embed import plain

from . import sample


class Page(HTMLParser):
    """Elements, attributes and the texts of scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts.append(data)

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] or "" for _, attributes in self.tags if "id" in attributes]

    @property
    def sections(self) -> list[str]:
        return [attributes["id"] or "" for tag, attributes in self.tags if tag == "section"]

    @property
    def results(self) -> Any:
        return json.loads(self.scripts[0])


ALL = ["quality", "speed", "balance", "text", "top", "kept", "generation", "audit", "details"]


def test_a_report_has_all_sections_and_plots(report: Path, results: dict[str, Any]) -> None:
    page = Page(report)
    assert page.sections == ALL
    assert page.results == plain(results)
    for name in ("quality", "speed", "balance", "kept"):
        assert (report.parent / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in report.parent.iterdir()) == ["plots", "report.html"]


def test_checks_hold_fail_or_do_not_apply(tmp_path: Path, results: dict[str, Any]) -> None:
    checks = copy.deepcopy(results["audit"]["checks"])
    checks[1]["holds"] = False
    source = write_report({**results, "audit": {"holds": False, "checks": checks}}, tmp_path).read_text()
    assert [source.count(word) for word in ("✓ holds", "✗ fails", "does not apply")] == [3, 1, 1]


def test_the_page_fetches_nothing(report: Path) -> None:
    page = Page(report)
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "base", "form")
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest", page.source)


def test_ids_are_unique_and_drawings_say_what_they_show(report: Path) -> None:
    page = Page(report)
    assert len(set(page.ids)) == len(page.ids)
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(drawings) == 8
    assert all(x["role"] == "img" and len(x["aria-label"] or "") > 40 for x in drawings)
    used = set(re.findall(r"url\(#([^)]+)\)", page.source)) | set(re.findall(r'href="#([^"]+)"', page.source))
    assert used <= set(page.ids)


def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    assert Page(write_report(sample.minimal(), tmp_path / "new" / "folder")).sections == ["details"]
    whole = sample.results(count=150, layers=1)
    for part, gone in (("quality", ["quality"]), ("speed", ["speed"]), ("audit", ["audit"])):
        some = sample.minimal() | {part: whole[part]}
        assert Page(write_report(some, tmp_path)).sections == [*gone, "details"]
        plots = {path.stem for path in (tmp_path / "plots").iterdir()}
        assert plots == ({part} if part != "audit" else set()), "a plot of an earlier run stays"


def test_holes_in_the_data_are_no_obstacle(tmp_path: Path) -> None:
    results = sample.results(count=150, layers=2)
    for row in results["quality"]["rows"]:
        row.pop("standard_error"), row.pop("distant"), row.pop("largest_group", None)
    results["quality"]["rows"][2]["perplexity"] = float("nan")
    results["quality"]["rows"] = results["quality"]["rows"][1:]
    for row in results["speed"]:
        row["bound"] = row["memory"] = row["full_seconds"] = None
    for layer in results["inspection"]["layers"]:
        layer |= {"kept": None, "top": None, "confidence": None, "temperature": None, "density": None}
    results |= {"generation": [], "audit": {}, "training": None, "versions": {}}
    assert Page(write_report(results, tmp_path)).sections == ["quality", "speed", "balance", "text", "top", "details"]


def test_hostile_text_stays_text(hostile_report: Path) -> None:
    page = Page(hostile_report)
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    assert not any(tag == "img" or any(x.startswith("on") for x in attributes) for tag, attributes in page.tags)
    assert page.results["title"] == sample.HOSTILE
    assert "49" not in re.findall(r"<h1>(.*?)</h1>", page.source)[0]
    assert "\x00" not in page.source and "\u202e" not in page.source


def test_a_failed_write_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_report(sample.minimal(), tmp_path)
    before = path.read_text()

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_report(sample.minimal() | {"title": "new"}, tmp_path)
    assert path.read_text() == before
    assert not list(tmp_path.glob(".report*"))


def test_without_matplotlib_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(FocusError, match=r"pip install focus-retrofit\[report\]"):
        write_report(sample.minimal(), tmp_path)
    page = Page(write_inspection(sample.inspection(50, 1), tmp_path / "text.html", "A text"))
    assert page.sections == ["text", "top"] and page.results["inspection"]["num_groups"] == 4


def test_plots_leave_nothing_behind_and_come_out_the_same(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="pip install focus-retrofit[report]")
    before = dict(matplotlib.rcParams)
    first, second = (
        write_report(sample.minimal() | {"quality": sample.quality()}, tmp_path / name).read_bytes() for name in "ab"
    )
    assert first == second
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


@pytest.mark.parametrize(
    "change, said",
    [
        ({"match": "both"}, "'probe' or 'share'"),
        ({"tokens": ["a"]}, "every one of 1"),
        ({"layers": None}, "lacks layers"),
    ],
)
def test_an_inspection_that_cannot_be_shown_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    inspection = {k: v for k, v in (sample.inspection(50, 1) | change).items() if v is not None}
    with pytest.raises(FocusError, match=said):
        write_inspection(inspection, tmp_path / "page.html", "A text")


def test_nothing_beats_what_is_on_the_frontier():
    from focus_retrofit.report.plot_quality import frontier

    rows = [
        {"density": x, "speed": 1 / x, "perplexity": y} for x, y in [(1.0, 8.0), (0.5, 9.0), (0.4, 8.5), (0.2, 11.0)]
    ]
    assert frontier(rows, "density") == [(0.2, 11.0), (0.4, 8.5), (1.0, 8.0)]
    assert frontier(rows, "speed") == [(5.0, 11.0), (2.5, 8.5), (1.0, 8.0)]
