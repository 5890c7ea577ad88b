"""Text in, windows out: every token once and in order, documents apart, bad input named."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_kernels import FocusError
from focus_retrofit.training import Stream, Windows, hold_out, load_texts, make_windows
from focus_retrofit.training.data import IGNORED

from .tiny import LetterTokenizer

TOKENIZER = LetterTokenizer()


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text("abcdefg", max_size=40), max_size=12), length=st.integers(2, 17))
def test_every_token_comes_once_and_in_order(texts, length):
    stream = Stream(texts, TOKENIZER, length)
    tokens = [token for text in texts if text for token in [*TOKENIZER(text).input_ids, TOKENIZER.eos_token_id]]
    windows = list(stream)
    assert len(windows) == len(tokens) // length
    assert [int(t) for w in windows for t in w["input_ids"]] == tokens[: len(windows) * length]


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text("abcdefg", min_size=1, max_size=40), min_size=1, max_size=12), length=st.integers(2, 17))
def test_positions_start_again_with_each_document(texts, length):
    ends = TOKENIZER.eos_token_id
    for window in Stream(texts, TOKENIZER, length):
        tokens, positions, labels = window["input_ids"], window["position_ids"], window["labels"]
        starts = torch.cat([torch.tensor([True]), tokens[:-1] == ends])
        assert torch.equal(positions == 0, starts)
        assert torch.equal(torch.diff(positions)[~starts[1:]], torch.ones(int((~starts[1:]).sum()), dtype=torch.long))
        assert torch.equal(labels == IGNORED, starts)
        assert torch.equal(labels[~starts], tokens[~starts])


def test_joined_text_has_no_boundaries():
    (window,) = Stream(["abc", "abc"], TOKENIZER, 8, apart=False)
    assert "position_ids" not in window
    assert (window["labels"] == IGNORED).tolist() == [True] + [False] * 7


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv", "txt", "directory", "pattern", "dataset", "strings"])
def test_kinds_of_sources(tmp_path, kind, streaming):
    import datasets

    texts = ["abcab", "bbbb", "ca"]
    rows = datasets.Dataset.from_dict({"text": texts, "n": [1, 2, 3]})
    source = tmp_path / f"data.{kind}"
    if kind == "jsonl":
        source.write_text("".join(json.dumps({"text": t, "n": 1}) + "\n" for t in texts))
    elif kind == "parquet":
        rows.to_parquet(str(source))
    elif kind == "csv":
        rows.to_csv(str(source))
    elif kind == "txt":
        source.write_text(texts[0])
        texts = texts[:1]
    elif kind in ("directory", "pattern"):
        (tmp_path / "deep").mkdir()
        for n, text in enumerate(texts):
            (tmp_path / "deep" / f"{n}.md").write_text(text)
        source = tmp_path if kind == "directory" else tmp_path / "**/*.md"
    elif kind == "dataset":
        source = rows.to_iterable_dataset() if streaming else rows
    else:
        source = texts
    found = load_texts(source, streaming=streaming)
    assert list(found) == texts
    assert list(found) == texts  # can be read again


def test_windows_are_the_streams(tmp_path):
    texts = ["abcdefg" * 5, "gfedcba" * 3]
    stream, windows = (make_windows(texts, TOKENIZER, 16, streaming=s) for s in (True, False))
    assert isinstance(stream, Stream)
    assert isinstance(windows, Windows)
    for a, b in zip(stream, windows, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_held_out_documents_are_whole_and_apart():
    texts = [str(n) for n in range(25)]
    rest, held = hold_out(texts, 10)
    assert held == ["5", "15"]
    assert sorted(rest + held) == sorted(texts)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda d: d / "absent.txt", "neither a file nor a dataset"),
        (lambda d: d, "no file in it"),
        (lambda d: [d.joinpath("e.txt").write_text(""), d / "e.txt"][1], "fewer than 16 tokens"),
        (lambda d: ["abc"], "fewer than 16 tokens"),
        (lambda d: [d.joinpath("b.txt").write_bytes(b"\xff\xfe\x00"), d / "b.txt"][1], "cannot read"),
        (lambda d: [d.joinpath("x.jsonl").write_text('{"body": "a"}\n'), d / "x.jsonl"][1], "no column 'text'"),
    ],
)
def test_bad_data_is_named(tmp_path, make, reason, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FocusError, match=reason):
        make_windows(make(tmp_path), TOKENIZER, 16)


def test_kinds_are_not_mixed(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(FocusError, match="mixes kinds"):
        load_texts(tmp_path)
