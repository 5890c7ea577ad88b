"""`focus-retrofit eval`: perplexity, benchmarks or retrieval by method, with the density it was had at."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from focus_kernels.errors import FocusError

from ..benchmark.options import parse_tokens
from .lists import Tokens, names, numbers
from .options import Command, as_json, model_options, printing


@click.command("eval", cls=Command)
@model_options
@click.argument("text", required=False)
@click.option("--methods", default="full,window,random,strided,focus,soft", show_default=True,
              help="Ways to attend: full, focus, soft, random, strided, window, wide, longformer, moba, sparq, h2o; "
              "'focus:2' looks into two groups, 'wide:2' computes as many pairs.")  # fmt: skip
@click.option("--length", default=1024, show_default=True, type=Tokens(), help="Tokens of a window.")
@click.option("--windows", default=8, show_default=True, help="Windows, spread over the text; 0 for all.")
@click.option("--stride", type=click.IntRange(1), help="Sliding windows: only the last so many tokens of each are "
              "scored, so that all have a long past; windows begin that far apart.")  # fmt: skip
@click.option("--by-position", is_flag=True, help="Also by position in the window: what the far context is worth.")
@click.option("--by-doubling", is_flag=True, help="The same in ranges that double, 256, 512, 1024, ...: where the "
              "positions end that the model was made for.")  # fmt: skip
@click.option("--column", default="text", show_default=True, help="Column of the text, in tables.")
@click.option("--split", default="test", show_default=True, help="Split of a dataset on the hub.")
@click.option("--tasks", callback=names, help="Benchmarks instead of a text: focus_hellaswag, focus_arc_easy, "
              "focus_piqa, focus_lambada, focus_truthfulqa_mc1, or tasks of lm-eval.")  # fmt: skip
@click.option("--shots", default=0, show_default=True, help="Solved examples before each item of a benchmark.")
@click.option("--retrieval", callback=names, help="Retrieval instead of a text: passkey, needle, manyshot, copy, "
              "induction.")  # fmt: skip
@click.option(
    "--lengths", default="1024", callback=numbers(parse_tokens), show_default=True, help="Of what is retrieved from."
)
@click.option("--depths", default="0,0.25,0.5,0.75,1", callback=numbers(float), show_default=True,
              help="Where in it: 0 is the beginning.")  # fmt: skip
@click.option("--haystack", default="essays", show_default=True, help="essays, books, reference or source.")
@click.option("--items", default=20, show_default=True, help="Of a benchmark (0 for all), or of each length and depth.")
@click.option("--seed", default=0, show_default=True, help="Of examples and of what is hidden.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write the results here too; called again, goes on. "
              "Retrieval draws its heat maps beside it.")  # fmt: skip
@as_json
def command(methods: str, output: str | None, as_json: bool, **options: Any) -> None:
    """How well MODEL predicts TEXT (a file, a directory, a pattern, a dataset on the hub, '-', or the held-out part of
    a text that comes along: reference, source, books, legal, medical), answers benchmarks (--tasks) or finds
    what lies far back (--retrieval), with full attention, with Focus, and with what one would use instead."""
    from ..benchmark import machine_facts, versions
    from ..evaluation import parse_methods
    from ..record import Record, model_facts
    from .load import load_focused, tensors_of
    from .measures import chosen

    wanted = parse_methods(methods)
    learning = [str(method) for method in wanted if method.learns]
    if learning:
        raise FocusError(f"{', '.join(learning)} must learn from a training text first: use `focus-retrofit compare`")
    measure = chosen(options)
    asked = {**options, **{name: x for name, x in vars(measure).items() if name not in measure.shown}}
    asked.pop("documents", None)
    asked["tensors"] = tensors_of(options)
    plain = {name: list(x) if isinstance(x, tuple) else x for name, x in asked.items() if x not in (None, False)}
    record = Record(Path(output) if output else None, plain)
    record["command"] = shlex.join(["focus-retrofit", *sys.argv[1:]])
    with printing(as_json):
        model, tokenizer = load_focused(options)
        record.update(model=model_facts(model), config=model.focus.config.to_dict())
        record.update(versions=versions(), machine=machine_facts())
        rows = measure.run(model, tokenizer, wanted, record)
        record.save()
    if as_json:
        click.echo(json.dumps({**record, "rows": rows}, indent=2))
    else:
        measure.show(rows, record)
