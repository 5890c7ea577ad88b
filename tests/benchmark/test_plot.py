"""Pictures hold the numbers of the files."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from focus_retrofit import FocusError
from focus_retrofit.benchmark import draw_bench, plot_bench, write_bench
from focus_retrofit.cli import main

from .made import made, record

LENGTHS = (1024, 2048, 4096, 8192)


def rows(part: str = "prefill", **facts: Any) -> list[dict[str, Any]]:
    return [made(n, 1e-7 * n**2, 1e-6 * n**1.5, part=part, memory=(n * 1000, n * 900), **facts) for n in LENGTHS]


def lines(figure: Any) -> dict[str, list[Any]]:
    """By what they are: their points; of several panels one after the other."""
    found: dict[str, list[Any]] = {}
    for axis in figure.get_axes():
        for line in axis.get_lines():
            if line.get_gid() and line.get_gid() != "dot":
                found.setdefault(line.get_gid(), []).append(list(zip(*line.get_data(), strict=True)))
    return found


def dots(axis: Any) -> list[tuple[float, str, bool]]:
    """(tokens, marker, filled) of each dot."""
    own = [line for line in axis.get_lines() if line.get_gid() == "dot"]
    return [(line.get_xdata()[0], line.get_marker(), line.get_markerfacecolor() == line.get_color()) for line in own]


def legend(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_series_are_those_of_the_rows() -> None:
    own = rows()
    figure = draw_bench([("a", record(*own))])
    found = lines(figure)
    for gid, name in {
        "speedup Focus": "speedup",
        "bound Focus": "bound",
        "full_bytes Focus": "full_bytes",
        "focus_bytes Focus": "focus_bytes",
        "full_seconds Focus": "full_seconds",
        "focus_seconds Focus": "focus_seconds",
    }.items():
        assert found[gid] == [[(row["tokens"], row[name]) for row in own]], gid
    speed, memory, growth = figure.get_axes()
    assert {axis.get_xscale() for axis in figure.get_axes()} == {"log"} == {speed.get_yscale(), growth.get_yscale()}
    dashed = next(line for line in speed.get_lines() if line.get_gid() == "bound Focus")
    assert dashed.get_linestyle() == "--"
    assert any(list(line.get_ydata()) == [1, 1] for line in speed.get_lines())
    assert legend(speed) == ["Focus", "bound"]
    assert legend(growth) == ["full attention ~ n^2.00", "Focus ~ n^1.50"]
    assert legend(memory) == ["full attention ~ n^1.00", "Focus ~ n^1.00"]


def test_marks_say_what_is_sampled_and_beyond() -> None:
    own = rows()
    for row in own[2:]:
        row["beyond_positions"] = True
    own[3]["sampled"] = "some blocks"
    speed, memory, growth = draw_bench([("a", record(*own))]).get_axes()
    assert dots(speed) == [(1024, "o", True), (2048, "o", True), (4096, "^", True), (8192, "^", False)]
    assert dots(growth)[3] == (8192, "^", False) and dots(growth)[7] == (8192, "^", True)  # Focus was run in whole
    assert legend(speed)[2:] == ["full attention sampled", "beyond the model's positions"]
    assert all(filled for _, _, filled in dots(memory))


def test_parts_files_and_setups_have_lines_of_their_own() -> None:
    training = rows("training", setup="x, explore = 1") + rows("training", setup="x, explore = 8")
    first, second = record(*rows(), *training), record(*({**row, "speedup": 9.0} for row in rows()))
    figure = draw_bench([("before", first), ("after", second)])
    assert len(figure.get_axes()) == 6
    found = lines(figure)
    assert {"speedup before", "speedup after", "speedup explore = 1", "speedup explore = 8"} <= set(found)
    assert [y for _, y in found["speedup after"][0]] == [9.0] * 4
    # full attention is the same for both setups, and drawn once
    assert "full_seconds explore = 1" in found and "full_seconds explore = 8" not in found


def test_memory_by_ratio_or_not_at_all() -> None:
    own = [{**row, "full_bytes": None, "focus_bytes": None} for row in rows()]
    _, memory, _ = draw_bench([("a", record(*own))]).get_axes()
    (line,) = (line for line in memory.get_lines() if line.get_gid() == "memory Focus")
    assert list(line.get_ydata()) == [0.9] * 4 and "over full" in memory.get_title("left")
    _, memory, _ = draw_bench([("a", record(*({**row, "memory": None} for row in own)))]).get_axes()
    assert "not measured" in [text.get_text() for text in memory.texts]
    with pytest.raises(FocusError, match="nothing to plot"):
        draw_bench([("a", record())])


@pytest.mark.parametrize(("kind", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_files(kind: str, magic: bytes, tmp_path: Path) -> None:
    file = write_bench(tmp_path / "a.json", [rows()[0]], "x")
    done = CliRunner().invoke(main, ["bench", "plot", str(file), "--output", str(tmp_path / "new" / f"b.{kind}")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new" / f"b.{kind}").read_bytes().startswith(magic)


def test_other_kinds_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(FocusError, match=r"must end in \.png, \.svg, \.pdf"):
        plot_bench([write_bench(tmp_path / "a.json", rows(), "x")], tmp_path / "b.bmp")
    done = CliRunner().invoke(main, ["bench", "kernel", "--lengths", "1M", "--plot", "b.bmp"])
    assert done.exit_code == 2 and "must end in" in done.output


def test_matplotlib_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, plain = write_bench(tmp_path / "a.json", rows(), "x"), builtins.__import__

    def without(name: str, *given: Any, **options: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return plain(name, *given, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(FocusError, match=r"need matplotlib: pip install focus-retrofit\[report\]"):
        plot_bench([file], tmp_path / "b.png")
