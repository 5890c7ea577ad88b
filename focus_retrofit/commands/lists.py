"""Options that are lists: '1024,4096', 'passkey,needle'."""

from __future__ import annotations

from typing import Any

import click


def numbers(kind: type) -> Any:
    """A callback for lists of numbers."""

    def read(ctx: click.Context, option: click.Parameter, text: str) -> tuple[Any, ...]:
        try:
            return tuple(kind(part) for part in str(text).split(","))
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a list like {option.default}") from None

    return read


def names(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """A callback for lists of names; none is empty."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()
