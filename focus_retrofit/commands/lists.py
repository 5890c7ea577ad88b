"""Options that are numbers of tokens, or lists: '4K', '1024,4096', 'passkey,needle'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from focus_kernels.errors import FocusError

from ..benchmark.options import parse_tokens


class Tokens(click.ParamType):
    """One number of tokens, at least 1; K and M are 1024 and 1024^2."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_tokens(str(value))
        except FocusError as wrong:
            self.fail(str(wrong), param, ctx)


def numbers(kind: Callable[[str], Any]) -> Any:
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
