"""Files, comparisons and tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from focus_retrofit import FocusError
from focus_retrofit.benchmark import (
    BenchConfig,
    keep_rows,
    parse_lengths,
    read_bench,
    table,
    verdicts,
    write_bench,
)
from focus_retrofit.benchmark.rows import FIELDS

ROOT = Path(__file__).parents[2]
Rows = list[dict[str, Any]]


def shown(what: Any) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_files_round_trip(rows: Rows, tmp_path: Path) -> None:
    record = read_bench(write_bench(tmp_path / "new" / "bench.json", rows, ["focus-retrofit", "bench", "x"]))
    assert record["rows"] == rows and record["schema"] == 2 and record["command"] == "focus-retrofit bench x"
    assert {"processor", "cores", "memory_gb", "threads"} <= set(record["machine"])
    assert {"focus_retrofit", "torch", "transformers", "python"} <= set(record["versions"])


def test_older_files_are_read(rows: Rows, tmp_path: Path) -> None:
    """Schema 1 had no bytes, and said in the method's name what was sampled."""
    new = {"full_bytes", "focus_bytes", "sampled"}
    old = [{name: value for name, value in row.items() if name not in new} for row in rows]
    old[0] = {**old[0], "full_method": "balanced, sampled"}
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"schema": 1, "command": "x", "machine": {}, "rows": old}))
    record = read_bench(path)
    assert [set(row) for row in record["rows"]] == [set(FIELDS)] * len(rows)
    assert [{name: row[name] for name in row if name not in new} for row in record["rows"]] == old
    assert [row["sampled"] is not None for row in record["rows"]] == [True] + [False] * (len(rows) - 1)
    assert all(row["full_bytes"] is None and row["memory"] for row in record["rows"])
    assert record["growth"] and "~" in shown(table(record["rows"]))


def test_files_of_this_repository_are_read() -> None:
    record = read_bench(ROOT / "results" / "training_cost.json")
    assert {row["part"] for row in record["rows"]} == {"training"}
    for row in record["rows"]:
        assert list(row) == list(FIELDS)
        assert row["memory"] == pytest.approx(row["focus_bytes"] / row["full_bytes"])
        assert row["speedup"] == pytest.approx(row["full_seconds"] / row["focus_seconds"])


def test_every_field_is_documented(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [name for name, text in FIELDS.items() if f"| `{name}` | {text} |" not in page] == []
    record = read_bench(write_bench(tmp_path / "bench.json", [], "x"))
    assert [name for name in record if f"| `{name}` |" not in page] == []


def test_what_is_done_is_kept(rows: Rows, tmp_path: Path) -> None:
    keep = keep_rows(tmp_path / "bench.json", "command")
    for count, row in enumerate(rows, 1):
        keep(row)
        assert read_bench(tmp_path / "bench.json")["rows"] == rows[:count]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read .*No such file"),
        ("speed: 3", "not JSON"),
        ("[]", "no list of rows"),
        ('{"schema": 1, "results": []}', "no list of rows"),
        ('{"schema": "decode-1", "rows": []}', "its schema is 'decode-1'"),
        ('{"schema": 1, "rows": [{"part": "kernel"}]}', "row 0 has no part .* or no setup"),
        ('{"schema": 1, "rows": [{"part": "kernel", "setup": "x", "tokens": 4}]}', "no positive full_seconds"),
    ],
)
def test_foreign_files_are_refused(content: str | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "foreign.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(FocusError, match=reason):
        read_bench(path)


def test_the_table_says_where_focus_loses(rows: Rows) -> None:
    (row,) = (row for row in rows if row["part"] == "decode" and row["tokens"] == 64)
    series = [
        {**row, "tokens": tokens, "speedup": speedup} for tokens, speedup in ((512, 0.5), (1024, 0.9), (4096, 1.2))
    ]
    text = shown(table(series))
    assert "slower than full attention up to 1,024 tokens" in text and "tok/s" in text and "4,096" in text
    assert verdicts(series[2:])[0].endswith("faster than full attention at every length")
    assert verdicts(series[:2])[0].endswith("slower than full attention at every length")
    series[0]["speedup"] = 1.1
    assert "slower than full attention at 1,024 tokens;" in verdicts(series)[0]
    assert "positions reach" in shown(table(rows)) and "positions reach" not in shown(table(series))


def test_noise_is_said(rows: Rows) -> None:
    quiet = {**rows[-1], "full_method": "x", "all": {"full: x": [1.0, 1.05], "focus": [2.0, 2.1]}, "tokens": 64}
    assert not any("noisy" in line for line in verdicts([quiet]))
    loud = {**quiet, "all": {"full: x": [1.0, 1.4], "focus": [2.0, 2.1]}}
    assert any("noisy" in line and "decode at 64" in line for line in verdicts([loud]))


def test_lengths() -> None:
    assert parse_lengths("4K, 512,1m,512") == [512, 4096, 1 << 20]
    for wrong in ("", "4G", "1", "-4"):
        with pytest.raises(FocusError, match="length"):
            parse_lengths(wrong)
    for options in ({"parts": "kernel,cooking"}, {"lengths": "x"}, {"repeats": 0}, {"new_tokens": 1.5}):
        with pytest.raises(FocusError):
            BenchConfig(**options)  # type: ignore[arg-type]


def test_options_files_and_tables_are_light() -> None:
    code = (
        "import sys; from focus_retrofit.benchmark import BenchConfig, read_bench, table, compare_benches; "
        "print([m for m in ('transformers', 'matplotlib', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
