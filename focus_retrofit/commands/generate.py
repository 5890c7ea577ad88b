"""`focus-retrofit generate`: tokens as they come."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from focus_kernels.errors import FocusError

from .lists import Tokens
from .options import Command, as_json, model_options
from .sampling import sampling, sampling_options


@click.command("generate", cls=Command)
@model_options
@click.argument("prompt", required=False)
@click.option("--prompt-file", type=click.Path(), help="Read the prompt from a file; '-' is standard input.")
@click.option("--compare", is_flag=True, help="The base model's continuation beside that with Focus.")
@click.option(
    "--chunk", default="4K", show_default=True, type=Tokens(), help="A prompt is read so many tokens at once."
)
@click.option("--cache-dtype", type=click.Choice(["bfloat16", "float16"]), help="Hold keys and values rounded to it.")
@click.option("--spill", metavar="DIRECTORY", help="Hold them in files there, gone when the command ends.")
@sampling_options
@as_json
def command(prompt: str | None, prompt_file: str | None, compare: bool, as_json: bool, **options: Any) -> None:
    """Continue PROMPT with MODEL and Focus attention."""
    text, picked = read_prompt(prompt, prompt_file), sampling(options)
    held, picked["chunk"] = (options.pop("cache_dtype"), options.pop("spill")), options.pop("chunk")
    from ..generation import compare_texts, continue_text
    from .load import load_focused

    model, tokenizer = load_focused(options, sample=text)
    ids = tokenizer(text, return_tensors="pt", verbose=False).input_ids
    if not ids.shape[1]:
        raise FocusError("the prompt has no tokens: write something")
    if any(held):
        import torch

        dtype, spill = held
        picked["cache"] = model.focus.new_cache(dtype=dtype and getattr(torch, dtype), spill=spill)
    if as_json:
        found = compare_texts(model, tokenizer, ids, **picked) if compare else None
        one = None if compare else vars(continue_text(model, tokenizer, ids, **picked))
        click.echo(json.dumps({**(found or one or {}), "report": model.focus.report().to_dict()}, indent=2))
    elif compare and sys.stdout.isatty():
        side_by_side(model, tokenizer, ids, picked)
    elif compare:
        found = compare_texts(model, tokenizer, ids, **picked)
        click.echo(f"--- base\n{found['base']}\n--- Focus\n{found['focus']}\n--- {agreement(found)}")
    else:
        click.echo(text, nl=False)
        done = continue_text(model, tokenizer, ids, show=lambda part: click.echo(part, nl=False), **picked)
        speed = done.tokens_per_second
        after = f", then {speed:.1f} tokens/s" if speed else ""
        click.echo()
        click.echo(f"{done.prompt_tokens} tokens read in {done.first_seconds:.1f} s{after}", err=True)


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The prompt, from wherever it was given."""
    if (prompt is None) == (file is None):
        raise FocusError("give the prompt either as an argument or by --prompt-file")
    if file is None:
        return str(prompt)
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FocusError(f"cannot read the prompt {file}: {error}") from None


def side_by_side(model: Any, tokenizer: Any, ids: Any, picked: dict[str, Any]) -> None:
    """Two panels that fill up, the base's first."""
    from rich.columns import Columns
    from rich.console import Console
    from rich.live import Live
    from rich.panel import Panel
    from rich.text import Text

    from ..generation import Show, compare_texts

    console = Console()
    texts = {"base": Text(), "Focus": Text()}

    def panels() -> Columns:
        width = console.width // 2 - 1
        return Columns([Panel(text, title=name, width=width) for name, text in texts.items()], padding=0)

    with Live(panels(), console=console, refresh_per_second=8) as live:

        def show(name: str) -> Show:
            def add(part: str) -> None:
                texts[name].append(part)
                live.update(panels())

            return add

        found = compare_texts(model, tokenizer, ids, show_base=show("base"), show_focus=show("Focus"), **picked)
    click.echo(agreement(found))


def agreement(found: dict[str, Any]) -> str:
    """In words, how far the two agree and how long they took."""
    same = "the same text" if found["same"] is None else f"the same for {found['same']} tokens"
    took = {name: f"{name} {first:.1f} s to the first token, {whole:.1f} s in all"
            for name, (first, whole) in found["seconds"].items()}  # fmt: skip
    return f"{same}; {'; '.join(took.values())}"
