"""`focus-retrofit plan`: what training a model's routers takes, or what long texts do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from focus_kernels.errors import FocusError

from .lists import Tokens
from .options import Command, Placed, as_json, config_file

if TYPE_CHECKING:
    from ..config import FocusConfig
    from ..planning import GPU

TRAINING: dict[str, Any] = {"cls": Placed, "section": "Training"}
INFERENCE: dict[str, Any] = {"cls": Placed, "section": "Inference (with --context)"}
CHECK: dict[str, Any] = {"cls": Placed, "section": "Check (with --check)"}


@click.command("plan", cls=Command)
@click.option("--model", help="A size (7b, 13b, 70b), a known model, a directory, or a name on the hub.")
@click.option(
    "--gpus", default="1", show_default=True, help="Number of GPUs; for inference also several, as in 1,8,64."
)
@click.option("--gpu", default=None, help="Kind of GPU, such as h100 or rtx4090-24.  [default: a100-80]")
@click.option("--gpu-memory", type=float, help="GB of each GPU, where it is not the named kind's.")
@click.option("--gpu-tflops", type=float, help="Dense half-precision TFLOPS of each GPU.")
@click.option("--bandwidth", type=float, help="GB/s at which each GPU receives from others in its node.")
@click.option("--num-groups", "--groups", "groups", default=8, show_default=True, help="Groups per layer, K.")
@click.option("--top-k", default=2, show_default=True, help="Groups each query looks into.")
@click.option("--group-dim", default=16, show_default=True, help="Size of the routers' projection.")
@click.option("--window", default=128, show_default=True, help="Nearest tokens that are always visible.")
@click.option("--length", default="2K", show_default=True, type=Tokens(), help="Tokens of a training text.", **TRAINING)
@click.option("--batch", default=1, show_default=True, help="Texts per GPU and step.", **TRAINING)
@click.option("--objective", default="lm-hard", show_default=True, help="lm, lm-hard, mass or distill.", **TRAINING)
@click.option("--explore", type=int, help="Groups per query that get a gradient.  [default: all]", **TRAINING)
@click.option("--steps", default=1000, show_default=True, help="Training steps.", **TRAINING)
@click.option(
    "--utilisation", default=0.4, show_default=True, help="Share of the GPU's peak speed that is reached.", **TRAINING
)
@click.option(
    "--checkpointing",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Gradient checkpointing; auto: where it does not fit without.",
    **TRAINING,
)
@click.option(
    "--context", help="Tokens of a prompt, as in 128K,1M: plan reading and writing, not training.", **INFERENCE
)
@click.option("--cache", default="bf16", show_default=True, help="Keys and values: fp32, bf16 or fp8.", **INFERENCE)
@click.option("--weights", default="bf16", show_default=True, help="fp32, bf16, fp8 or nf4.", **INFERENCE)
@click.option(
    "--chunk", default="8K", show_default=True, type=Tokens(), help="Tokens of a prompt read at once.", **INFERENCE
)
@click.option("--hbm", type=float, help="GB/s of each GPU's own memory.", **INFERENCE)
@click.option("--network", type=float, help="GB/s at which each GPU receives from other nodes.", **INFERENCE)
@click.option("--node", default=8, show_default=True, help="GPUs of a node.", **INFERENCE)
@click.option(
    "--check",
    metavar="FILE",
    multiple=True,
    help="Predict what a file of `bench`, of the kernels' benchmarks or of traffic measured; several times if need be.",
    **CHECK,
)
@click.option("--fit-to", metavar="TOKENS", help="Fit rates on rows up to here.  [default: half the lengths]", **CHECK)
@click.option("--calibrate", is_flag=True, help="Fit nothing: use rates measured now, on this machine.", **CHECK)
@config_file
@as_json
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Memory and time of training the routers of a model, for each way to use the GPUs; with --context, of reading and
    writing long texts; with --check, how well that predicts a benchmark."""
    if options["check"] and options["context"] is not None:
        raise click.UsageError("--check and --context exclude each other")
    mode = "check" if options["check"] else "inference" if options["context"] is not None else "training"
    _refuse_others(ctx, mode)
    if options["model"] is None and mode != "check":
        raise click.UsageError("Missing option '--model'.")
    {"training": _train, "inference": _serve, "check": _check}[mode](options)


def _refuse_others(ctx: click.Context, mode: str) -> None:
    """An option of another mode would do nothing: say so."""
    sections = {"training": TRAINING["section"], "inference": INFERENCE["section"], "check": CHECK["section"]}
    for option in ctx.command.params:
        section = getattr(option, "section", sections[mode])
        given = ctx.get_parameter_source(option.name or "")
        if section != sections[mode] and given == click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} is for {section}, this plan is for {sections[mode]}")


def _focus(options: dict[str, Any]) -> FocusConfig:
    from ..config import FocusConfig

    window = options["window"]
    return FocusConfig(
        num_groups=options["groups"],
        top_k=options["top_k"],
        group_dim=options["group_dim"],
        explore=options["explore"],
        window=window,
        sinks=min(4, max(window, 0)),
    )


def _gpu(options: dict[str, Any]) -> GPU:
    from ..planning import find_gpu

    name, memory, tflops = (options[key] for key in ("gpu", "gpu_memory", "gpu_tflops"))
    if name is None and memory is None and tflops is None:
        name = "a100-80"
    return find_gpu(name, memory, tflops, options["bandwidth"], options["hbm"], options["network"])


def _counts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.removeprefix("-").isdigit() for part in parts):
        raise FocusError(f"gpus is {text!r}; write a number, or several as in 1,8,64")
    return [int(part) for part in parts]


def _train(options: dict[str, Any]) -> None:
    from ..planning import plan
    from ..planning.show import print_plan

    counts = _counts(options["gpus"])
    if len(counts) > 1:
        raise FocusError(f"gpus is {options['gpus']!r}; a plan of training takes one number, or give --context")
    found = plan(
        options["model"],
        gpu=_gpu(options),
        gpus=counts[0],
        focus=_focus(options),
        checkpointing={"auto": None, "on": True, "off": False}[options["checkpointing"]],
        **{name: options[name] for name in ("length", "batch", "objective", "steps", "utilisation")},
    )
    if options["as_json"]:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        print_plan(found)


def _serve(options: dict[str, Any]) -> None:
    from ..benchmark.options import parse_lengths
    from ..planning import plan_inference
    from ..planning.show import print_serving

    found = plan_inference(
        options["model"],
        contexts=parse_lengths(options["context"]),
        gpus=_counts(options["gpus"]),
        gpu=_gpu(options),
        focus=_focus(options),
        **{name: options[name] for name in ("cache", "weights", "chunk", "node")},
    )
    if options["as_json"]:
        click.echo(json.dumps([one.to_dict() for one in found], indent=2))
    else:
        print_serving(found)


def _check(options: dict[str, Any]) -> None:
    from ..benchmark.options import parse_lengths
    from ..planning import find_model
    from ..planning.check import check_bench
    from ..planning.measured import read_rows
    from ..planning.show import print_check, print_traffic
    from ..planning.traffic import check_traffic, read_traffic

    rates = None
    if options["calibrate"]:
        from ..planning.calibrate import measure_rates

        rates = measure_rates()
    traffic = {path: read_traffic(path) for path in options["check"]}
    rows = [row for path, sent in traffic.items() if sent is None for row in read_rows(path)]
    sent = check_traffic(row for one in traffic.values() for row in one or [])
    found = None
    if rows or not sent:
        found = check_bench(
            rows,
            model=find_model(options["model"]) if options["model"] else None,
            fit_to=parse_lengths(options["fit_to"])[-1] if options["fit_to"] else None,
            rates=rates,
        )
    if options["as_json"]:
        click.echo(json.dumps({**(found.to_dict() if found else {}), "traffic": sent}, indent=2))
        return
    if found is not None:
        print_check(found)
    if sent:
        print_traffic(sent)
