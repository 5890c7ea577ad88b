"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence

SPACE = "\u00a0"  # a number is never torn from its unit
TIMES = "\u00d7"


def percent(share: float | None, digits: int = 0) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f}{SPACE}%"


def change(ratio: float) -> str:
    """A ratio of two numbers as the signed difference: 1.046 is +4.6 %."""
    return f"{100 * (ratio - 1):+.1f}{SPACE}%".replace("-", "\u2212")


def count(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def number(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1e-3:
        return f"{1e6 * value:.3g}{SPACE}µs"
    return f"{1e3 * value:.3g}{SPACE}ms" if value < 1 else f"{value:.3g}{SPACE}s"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}{TIMES}"


def length(tokens: float) -> str:
    """Lengths on an axis: 4096 is 4K."""
    if tokens < 1024:
        return f"{tokens:.0f}"
    thousands = tokens / 1024
    return f"{thousands / 1024:.3g}M" if thousands >= 1024 else f"{thousands:.3g}K"


def listed(items: Sequence[object]) -> str:
    texts = [str(item) for item in items]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]
