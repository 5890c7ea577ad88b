"""Options that commands share: those of FocusConfig and TrainConfig by their names, a YAML file that may hold them, and
what to load."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from focus_kernels.errors import FocusError

from ..config import FocusConfig

Function = Callable[..., Any]


class Placed(click.Option):
    """An option with a place of its own in the help."""

    def __init__(self, *words: Any, section: str, **options: Any):
        super().__init__(*words, **options)
        self.section = section


class Command(click.Command):
    """Help in sections: what a command is about comes first, what it shares with others after it."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if line is not None:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(line)
        for name, lines in sections.items():
            with formatter.section(name):
                formatter.write_dl(lines)


as_json = click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, and nothing else.")


def printing(json_only: bool) -> AbstractContextManager[Any]:
    """Inside, what libraries print goes to standard error where standard output is for JSON."""
    return redirect_stdout(sys.stderr) if json_only else nullcontext()


def _read_config(ctx: click.Context, option: click.Parameter, path: str | None) -> None:
    """Values of the file are defaults from here on: what is given on the command line wins."""
    if path is None:
        return
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise FocusError(f"cannot read the configuration {path}: {error}") from None
    except yaml.YAMLError as error:
        raise FocusError(f"{path} is not YAML: {error}") from None
    if not isinstance(values, dict):
        raise FocusError(f"{path} must hold options by name, such as 'num_groups: 4'; it holds {values!r}")
    values = {str(name).replace("-", "_"): value for name, value in values.items()}
    known = {parameter.name for parameter in ctx.command.params} - {option.name}
    unknown = sorted(set(values) - known)
    if unknown:
        known_names = ", ".join(sorted(name for name in known if name))
        raise FocusError(f"{path} has options that this command does not: {', '.join(unknown)}; known: {known_names}")
    given = {name: json.dumps(x) if isinstance(x, list | dict) else x for name, x in values.items() if x is not None}
    ctx.default_map = {**(ctx.default_map or {}), **given}


config_file = click.option(
    "--config",
    "config_path",
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="YAML file with options by name; those given here win.",
)


def options_of(kind: Any, section: str) -> Callable[[Function], Function]:
    """An option for every field of a configuration: --name value, or --name/--no-name."""
    place: dict[str, Any] = {"cls": Placed, "section": section}

    def decorate(function: Function) -> Function:
        for field in reversed(fields(kind)):
            name = "--" + field.name.replace("_", "-")
            text = field.metadata["help"] + f"  [default: {field.default}]"
            if isinstance(field.default, bool):
                function = click.option(f"{name}/--no-{name[2:]}", default=None, help=text, **place)(function)
            else:
                function = click.option(name, metavar="VALUE", help=text, **place)(function)
        return function

    return decorate


def chosen(kind: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a configuration that were given, as values of the fields' kinds; taken out of `options`."""
    found = {}
    for field in fields(kind):
        value = options.pop(field.name, None)
        if value is not None:
            plain = isinstance(value, bool) or (isinstance(field.default, str) and field.name != "layers")
            found[field.name] = value if plain else _value(str(value))
    return found


def _value(text: str) -> Any:
    """A number, a list or None where the text is one; otherwise the text."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


FOCUS = "Focus attention"
_BASE: dict[str, Any] = {"cls": Placed, "section": "Base model"}


def base_options(function: Function) -> Function:
    """Which base model, and how to hold it."""
    for decorate in reversed(
        (
            click.argument("model"),
            click.option(
                "--dtype",
                type=click.Choice(["float32", "bfloat16", "float16"]),
                default="float32",
                show_default=True,
                help="Of the base model.",
                **_BASE,
            ),
            click.option("--device-map", help="How to lay the model out over devices: auto, cuda, ...", **_BASE),
            click.option("--load-in-4bit", is_flag=True, help="Quantise the base model (bitsandbytes).", **_BASE),
            click.option("--trust-remote-code", is_flag=True, help="Run a hub model's own code.", **_BASE),
            click.option(
                "--rope",
                type=click.Choice(["none", "linear", "ntk", "yarn", "longrope"]),
                callback=lambda ctx, option, value: None if value == "none" else value,
                help="Extend positions beyond those the model was made for.  [default: none]",
                **_BASE,
            ),
            click.option("--rope-factor", type=float, help="How many times as long texts become.", **_BASE),
        )
    ):
        function = decorate(function)
    return function


def model_options(function: Function) -> Function:
    """Which model, with which adapter or untrained routers."""
    for decorate in reversed(
        (
            base_options,
            click.option(
                "--adapter",
                default="auto",
                metavar="NAME",
                help="A directory, a name on the hub, one that comes along, or 'none' for untrained routers.  "
                "[default: the one that comes along for this model, where no option asks for another]",
            ),
            click.option("--backend", default="auto", show_default=True, help="Of attention; see `bench kernel`."),
            config_file,
            options_of(FocusConfig, FOCUS),
        )
    ):
        function = decorate(function)
    return function
