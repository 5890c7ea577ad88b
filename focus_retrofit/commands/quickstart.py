"""`focus-retrofit quickstart`: everything once, on a real model."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .options import Command, as_json, config_file, printing


@click.command("quickstart", cls=Command)
@click.option(
    "--output", default="runs/quickstart", show_default=True, help="Folder of the run; called again, goes on."
)
@click.option("--model", default="smollm2-135m", show_default=True, help="A packaged name, a directory, or on the hub.")
@click.option("--data", default="reference", show_default=True, help="reference, source, books, or a file or folder.")
@click.option("--fast", is_flag=True, help="A few minutes: less text, fewer measurements.")
@config_file
@as_json
def command(output: str, model: str, data: str, fast: bool, as_json: bool) -> None:
    """Retrofit MODEL with K = 4, train its centroids on a text, measure full attention, window only and Focus on
    held-out text, audit for leaks, time attention and prefill, generate with and without, and write a report."""
    from ..quickstart import Quickstart
    from .load import quiet_libraries

    quiet_libraries()
    command = "focus-retrofit quickstart" + " --fast" * fast
    folder = Path(output)
    run = Quickstart(folder, model, data, fast=fast, command=command, note=lambda line: click.echo(line, err=True))
    with printing(as_json):
        record = run.run()
    if as_json:
        click.echo(json.dumps(record, indent=2))
        return
    click.echo(f"{record['minutes']:.1f} minutes; audit {'holds' if record['audit']['holds'] else 'FAILS'}")
    for name in ("adapter", "results.json", "report.html"):
        click.echo(f"written: {folder / name}")
