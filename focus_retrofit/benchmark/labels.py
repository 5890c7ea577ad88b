"""Setups told apart in few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def short_setups(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """(part, setup) -> what sets it apart from the part's other setups, or nothing where it is alone."""
    parts: dict[str, list[str]] = {}
    for row in rows:
        setups = parts.setdefault(row["part"], [])
        if row["setup"] not in setups:
            setups.append(row["setup"])
    found = {}
    for part, setups in parts.items():
        for setup, label in zip(setups, apart(setups), strict=True):
            found[part, setup] = label
    return found


def apart(texts: Sequence[str]) -> list[str]:
    """Texts of parts between commas without those that all have at the beginning and at the end; alone, nothing."""
    split = [text.split(", ") for text in texts]
    head, tail = _common(split)
    return [", ".join(parts[head : len(parts) - tail]) or ("plain" if len(texts) > 1 else "") for parts in split]


def common(texts: Sequence[str]) -> str:
    """What `apart` leaves out, once."""
    split = [text.split(", ") for text in texts]
    head, tail = _common(split)
    return ", ".join([*split[0][:head], *split[0][len(split[0]) - tail :]])


def _common(split: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Parts that all have at the beginning, and of the rest at the end."""
    shortest = min(map(len, split))
    head = next((n for n in range(shortest) if len({parts[n] for parts in split}) > 1), shortest)
    rest = shortest - head
    return head, next((n for n in range(rest) if len({parts[-1 - n] for parts in split}) > 1), rest)
