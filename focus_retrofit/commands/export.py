"""`focus-retrofit export`: an adapter, or a whole model with it, in one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .options import Command, as_json, model_options


@click.command("export", cls=Command)
@model_options
@click.argument("output", type=click.Path(file_okay=False))
@click.option("--with-base", is_flag=True, help="The base model and its tokenizer too, as safetensors.")
@click.option("--push", metavar="NAME", help="Upload the folder to the hub under this name (huggingface_hub's login).")
@click.option("--private", is_flag=True, help="Of a new name on the hub.")
@as_json
def command(output: str, with_base: bool, push: str | None, private: bool, as_json: bool, **options: Any) -> None:
    """Write the adapter of MODEL to OUTPUT with the options given here, such as another top_k; with --with-base the
    folder is a whole model, also of one that came as GGUF: load_pretrained(OUTPUT), load_adapter(model, OUTPUT)."""
    from ..adapter import describe_adapter, find_adapter
    from ..exporting import export
    from .load import adapter_of, load_focused

    adapter, changed = adapter_of(options)
    known = None if adapter == "none" or changed else describe_adapter(find_adapter(adapter)).get("results")
    model, tokenizer = load_focused(options)
    found = export(model, tokenizer, Path(output), with_base=with_base, results=known)
    if push:
        from ..hub import upload_folder

        found["hub"] = upload_folder(Path(output), push, private=private)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        for name, size in found["files"].items():
            click.echo(f"{size / 1e6:9.2f} MB  {name}")
        click.echo(f"written: {output}" + (f"; {found['hub']}" if push else ""))
