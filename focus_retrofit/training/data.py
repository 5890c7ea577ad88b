"""Text to train on: files, datasets or strings in, windows of tokens out, documents kept apart."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from tqdm.auto import tqdm

from focus_kernels import FocusError

LOADERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv", ".arrow": "arrow"}
IGNORED = -100  # label of a token that is not predicted


def load_texts(
    source: Any, *, split: str = "train", column: str = "text", streaming: bool = False, **options: Any
) -> Iterable[str]:
    """Documents as strings, in order.

    source: strings; a `datasets` dataset; a file, a directory or a pattern of files (.jsonl, .json, .parquet, .csv and
    .arrow by their `column`, anything else as one document per file); or a dataset's name on the hub.
    """
    if not isinstance(source, str | os.PathLike):
        return _column(source, column) if hasattr(source, "column_names") else list(source)
    from datasets import load_dataset

    name = os.fspath(source)
    files = _files(name)
    if files is None:
        try:
            return _column(load_dataset(name, split=split, streaming=streaming, **options), column)
        except Exception as error:  # whatever the hub, or its absence, raises
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FocusError(f"no data {name!r}: neither a file nor a dataset that can be loaded ({reason})") from error
    if not files:
        raise FocusError(f"no data {name!r}: no file in it")
    kinds = {LOADERS.get(Path(file).suffix.lower(), "text") for file in files}
    if len(kinds) > 1:
        raise FocusError(f"{name!r} mixes kinds of files ({', '.join(sorted(kinds))}): name those of one kind")
    (kind,) = kinds
    if kind == "text":
        return [_read(file) for file in files]
    rows = load_dataset(kind, data_files=files, split="train", streaming=streaming, **options)
    return _column(rows, column)


def _files(name: str) -> list[str] | None:
    """The files a path or pattern names, sorted; None if it is no path."""
    path = Path(name)
    if path.is_dir():
        return sorted(str(p) for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    if path.is_file():
        return [name]
    return sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else None


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FocusError(f"cannot read {file} as text: {error}") from None


def _column(rows: Any, column: str) -> Iterable[str]:
    names = rows.column_names or []
    if names and column not in names:
        raise FocusError(f"the data has no column {column!r}; its columns: {', '.join(names)}")
    return Column(rows, column)


class Column:
    """The texts of a dataset, read as they are asked for; can be read again."""

    def __init__(self, rows: Any, column: str):
        self.rows, self.column = rows, column

    def __iter__(self) -> Iterator[str]:
        return (row[self.column] for row in self.rows)


class Stream(IterableDataset):
    """Windows of `length` tokens, made while the documents are read.

    Each document ends with the tokenizer's end-of-text token, where it has one. `apart`: positions start again with
    each document, which keeps packed documents from seeing each other, and its first token is not predicted; otherwise
    a window is one running text. The last tokens, too few for a window, are left out.
    """

    def __init__(self, texts: Iterable[str], tokenizer: Any, length: int, *, apart: bool = True):
        self.texts, self.tokenizer, self.length, self.apart = texts, tokenizer, length, apart

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for tokens, positions in self.windows():
            yield as_example(torch.from_numpy(tokens).long(), torch.from_numpy(positions).long(), self.apart)

    def windows(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(tokens, positions), each [length]."""
        end = [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]
        tokens, positions = np.empty(0, np.int32), np.empty(0, np.int32)
        for text in self.texts:
            found = self.tokenizer(text, verbose=False).input_ids
            if not found:
                continue
            if found[-1:] != end:
                found = found + end
            tokens = np.concatenate([tokens, np.asarray(found, np.int32)])
            positions = np.concatenate([positions, np.arange(len(found), dtype=np.int32)])
            whole = len(tokens) // self.length * self.length
            for start in range(0, whole, self.length):
                place = positions[start : start + self.length]
                # a document that began in an earlier window starts anew: what it saw there is out of sight
                first = place[0]
                run = int(np.argmax(np.append(np.diff(place) != 1, True))) + 1
                yield tokens[start : start + self.length], np.concatenate([place[:run] - first, place[run:]])
            tokens, positions = tokens[whole:], positions[whole:]


class Windows(Dataset):
    """The windows of a `Stream`, in memory (8 bytes a token) and in any order."""

    def __init__(self, stream: Stream, what: str = "text"):
        progress = tqdm(stream.windows(), desc=f"tokenising {what}", unit=" windows", leave=False)
        pairs = [(tokens.astype(np.int32), place.astype(np.int32)) for tokens, place in progress]
        if not pairs:
            raise FocusError(
                f"the {what} has fewer than {stream.length} tokens, which one window takes: give more text, or a "
                "smaller length"
            )
        self.tokens, self.positions = (torch.from_numpy(np.stack(x)) for x in zip(*pairs, strict=True))
        self.apart = stream.apart

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return as_example(self.tokens[index].long(), self.positions[index].long(), self.apart)


def as_example(tokens: Tensor, positions: Tensor, apart: bool) -> dict[str, Tensor]:
    """What the model is called with, for one window [T]."""
    labels = tokens.clone()
    labels[0] = IGNORED
    if not apart:
        return {"input_ids": tokens, "labels": labels}
    return {"input_ids": tokens, "labels": labels.masked_fill(positions == 0, IGNORED), "position_ids": positions}


def make_windows(
    source: Any,
    tokenizer: Any,
    length: int,
    *,
    apart: bool = True,
    streaming: bool = False,
    what: str = "text",
    **load: Any,
) -> Windows | Stream:
    """From a source of `load_texts` to windows of `length` tokens."""
    stream = Stream(load_texts(source, streaming=streaming, **load), tokenizer, length, apart=apart)
    return stream if streaming else Windows(stream, what)


def hold_out(texts: Iterable[str], every: int = 10) -> tuple[list[str], list[str]]:
    """(training, held-out) documents: each `every`-th is held out, whole."""
    texts = list(texts)
    held = texts[every // 2 :: every]
    rest = [text for number, text in enumerate(texts) if number % every != every // 2]
    return rest, held
