"""The command `focus-retrofit`. Each command is a module that is imported when it runs: help costs nothing."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from . import __version__

COMMANDS = {
    "quickstart": "Retrofit, train, measure and report on a small real model.",
    "train": "Train Focus routers for a model on a text.",
    "eval": "Perplexity of full attention, Focus and what knows less, on the same text.",
    "compare": "Focus beside its rivals: perplexity, benchmarks, retrieval, pairs and time.",
    "generate": "Continue a prompt, token by token; --compare shows the base model beside it.",
    "chat": "Talk with a model, with Focus or without.",
    "bench": "Time attention, prefill, decoding and training against full attention; compare and plot.",
    "inspect": "Which groups a text's tokens are in, layer by layer.",
    "audit": "Check an adapter on a model: leaks, balance, equality with the base, exactness.",
    "plan": "Memory and time of training the routers, or of reading and writing long texts, on 1 to 64 GPUs.",
    "export": "Write an adapter, or a model with it, for use elsewhere.",
}


class Commands(click.Group):
    """Loads a command when it is called. A user's mistake is one line and exit code 2; with --debug it is a
    traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f".commands.{name}", __package__).command
        command.short_help = COMMANDS[name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            at = (error.ctx or ctx).command_path
            click.echo(f"Error: {' '.join(error.format_message().split())} (see {at} --help)", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            click.echo("\nStopped. What was finished is kept; the same command goes on from there.", err=True)
            ctx.exit(130)
        except BrokenPipeError:  # the reader of a pipe has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            from focus_kernels.errors import FocusError

            from .memory import out_of_memory

            short = out_of_memory(error)
            if short and not ctx.params.get("debug"):
                click.echo(f"Error: {short}", err=True)
                ctx.exit(3)
            if ctx.params.get("debug") or not isinstance(error, FocusError | OSError):
                raise
            click.echo("Error: " + " ".join(str(error).split()), err=True)
            ctx.exit(2)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="focus-retrofit")
@click.option("--debug", is_flag=True, help="Show where an error comes from.")
def main(debug: bool) -> None:
    """Retrofit frozen causal language models with Focus attention."""
