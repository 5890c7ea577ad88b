"""How the next token is picked: options that `generate` and `chat` share."""

from __future__ import annotations

from typing import Any

import click

from .options import Function

SAMPLING = (
    click.option("--max-new-tokens", default=128, show_default=True, type=click.IntRange(1), help="Tokens to write."),
    click.option("--sampling-temperature", default=0.0, show_default=True, type=click.FloatRange(0),
                 help="0 takes the likeliest token; higher is more varied."),
    click.option("--top-p", default=1.0, show_default=True, type=click.FloatRange(0, 1, min_open=True),
                 help="Sample from the likeliest tokens that make up this probability."),
    click.option("--seed", default=0, show_default=True, help="Of sampling."),
)  # fmt: skip


def sampling_options(function: Function) -> Function:
    for decorate in reversed(SAMPLING):
        function = decorate(function)
    return function


def sampling(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `model.generate`, taken out of `options`."""
    warmth, top_p = options.pop("sampling_temperature"), options.pop("top_p")
    found: dict[str, Any] = {"max_new_tokens": options.pop("max_new_tokens"), "seed": options.pop("seed")}
    if warmth:
        return {**found, "do_sample": True, "temperature": warmth, "top_p": top_p, "top_k": 0}
    return {**found, "do_sample": False, "temperature": None, "top_p": None, "top_k": None}
