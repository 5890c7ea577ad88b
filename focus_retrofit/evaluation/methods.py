"""Ways to attend, by name: Focus, groups that know nothing, and rivals; and a model's perplexity with each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from focus_kernels import FocusError

from ..config import shown_k
from ..files import write_atomically
from ..rivals import RIVALS, FineTuning, LoRA
from .baselines import random_groups, routed, strided_groups
from .perplexity import Cell, read_window, summarise

METHODS = {  # beside the rivals
    "full": "full attention, the base model",
    "focus": "Focus as served",
    "soft": "Focus through the soft training gate (dense)",
    "random": "random groups",
    "strided": "strided groups (position modulo K)",
    "lora": "LoRA, all pairs ('lora:4@1e-4': rank and learning rate)",
    "finetune": "full fine-tuning, all pairs ('finetune@1e-5': learning rate)",
}
RATES = {"lora": 3e-4, "finetune": 1e-5}  # unless said otherwise
PLAIN = ("full", "window", "finetune")  # no number after these
Row = dict[str, Any]


class Method(NamedTuple):
    """What 'focus:2' and 'lora:4@1e-4' say."""

    name: str
    number: int | None = None  # k, or a rank
    rate: float | None = None

    def __str__(self) -> str:
        number = "" if self.number is None else f":{self.number}"
        return self.name + number + ("" if self.rate is None else f"@{self.rate:g}")

    @property
    def kind(self) -> str:
        """'full', 'focus', 'weights', or 'baseline': any other way to attend."""
        kinds = {"full": "full", "focus": "focus", "soft": "focus", "lora": "weights", "finetune": "weights"}
        return kinds.get(self.name, "baseline")

    @property
    def learns(self) -> bool:
        return self.name in RATES or (self.name in RIVALS and RIVALS[self.name].learns)


def parse_methods(text: str) -> list[Method]:
    """'full,focus,focus:2' -> three methods; the number is k, or LoRA's rank."""
    found, known = [], [*METHODS, *RIVALS]
    for part in text.split(","):
        match = re.fullmatch(r"\s*([a-z0-9]+)(?::([1-9][0-9]*))?(?:@([0-9.e-]+))?\s*", part)
        if match is None or match[1] not in known or (match[2] and match[1] in PLAIN) or not _rate_fits(match):
            raise FocusError(
                f"method {part.strip()!r} is not known; choose from {', '.join(known)}, with ':2' for two groups per "
                "query, or as many pairs; LoRA takes a rank ('lora:4'), and a learning rate ('lora:4@1e-4')"
            )
        found.append(Method(match[1], int(match[2]) if match[2] else None, float(match[3]) if match[3] else None))
    return found


def _rate_fits(match: re.Match[str]) -> bool:
    if match[3] is None:
        return True
    try:
        return match[1] in RATES and float(match[3]) > 0
    except ValueError:
        return False


@contextmanager
def attending(
    model: Any, method: str, number: int | None = None, rate: float | None = None, *, seed: int = 0
) -> Iterator[None]:
    """Inside, a retrofitted model attends by another method; what it was is restored. `seed` draws random groups."""
    focus, wanted = model.focus, Method(method, number, rate)
    config, before = focus.config, (focus.config.top_k, focus.config.layer_top_k, focus.mode)
    if number is not None and number > config.num_groups and method != "lora":
        raise FocusError(f"{wanted} asks for {number} groups per query; there are {config.num_groups}")
    with ExitStack() as stack:
        try:
            if method == "full":
                stack.enter_context(focus.disabled())
            elif method in RIVALS or method in RATES:
                stack.enter_context(rival_of(model, wanted).applied(model))
            else:
                if number is not None:
                    config.top_k, config.layer_top_k = number, None
                if method in ("random", "strided"):
                    groups = random_groups(seed) if method == "random" else strided_groups
                    stack.enter_context(routed(model, groups))
            focus.mode = "soft" if method == "soft" else "hard"
            yield
        finally:
            config.top_k, config.layer_top_k, focus.mode = before


def rival_of(model: Any, method: Method) -> Any:
    """A rival at the budget of this model's Focus; one that learns must have been prepared."""
    focus = model.focus
    if method in focus.rivals:
        return focus.rivals[method]
    if method.learns:
        raise FocusError(f"{method} learns from training text: `focus-retrofit compare`, or prepare(model, ...), first")
    return make_rival(model, method)


def make_rival(model: Any, method: Method, steps: int = 0) -> Any:
    config = model.focus.config
    if method.name in RATES:
        rate = method.rate or RATES[method.name]
        return FineTuning(rate, steps) if method.name == "finetune" else LoRA(rate, steps, rank=method.number or 4)
    share = (method.number or model.focus.top_k) / config.num_groups
    return RIVALS[method.name](share, config.window, config.sinks)


def prepare(
    model: Any, methods: Iterable[Method], windows: list[Tensor], steps: int = 60, folder: Path | None = None
) -> None:
    """Let those of the methods learn that do, and have not yet, from windows of training text [T]; `steps` of weights,
    gates and clusters see each window once. What they learn is kept in a folder, and taken from there."""
    from safetensors.torch import load_file, save

    for method in methods:
        if not method.learns or method in model.focus.rivals:
            continue
        rival = make_rival(model, method, steps)
        file = None if folder is None else folder / f"{method}.safetensors"
        if file is not None and file.is_file():
            rival.load_state(load_file(file))
        else:
            rival.prepare(model, windows)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, save(rival.state()))
        model.focus.rivals[method] = rival


def evaluate(
    model: Any,
    windows: Sequence[Tensor],
    methods: Iterable[Method],
    on_row: Callable[[Row], None] = lambda row: None,
    *,
    scored: int | None = None,
    cells: dict[str, list[Cell]] | None = None,
    on_cell: Callable[[], None] = lambda: None,
) -> list[Row]:
    """A row per method: perplexity with its standard error, density, seconds, and the change against full attention
    where that is among the methods, paired window by window.

    Methods take turns on each window, so that their times compare. `cells` holds what was read before, by method, and
    what is read now; `on_cell` is called after each.
    """
    methods = [Method(*method) for method in methods]
    cells = {} if cells is None else cells
    bar = tqdm(total=len(windows) * len(methods), unit=" windows", leave=False)
    with bar:
        for number, window in enumerate(windows):
            for method in methods:
                done = cells.setdefault(str(method), [])
                if len(done) <= number:
                    bar.set_description(str(method))
                    with attending(model, *method, seed=number):
                        done.append(read_window(model, window, scored))
                    on_cell()
                bar.update()
    rows = []
    for method in methods:
        name = title(model, method)
        rows.append({"method": name, "kind": method.kind, **facts(model, method), **summarise(cells[str(method)])})
        if method.name == "soft":
            rows[-1]["density"] = rows[-1]["distant"] = 1.0  # dense, gated
    compare(rows)
    for row in rows:
        on_row(row)
    return rows


def facts(model: Any, method: Method) -> dict[str, Any]:
    """How a method computes ('dense mask': its time says nothing of its pairs), and how many numbers it learned."""
    if method.kind == "full":
        return {"engine": "full"}
    if method.name in RIVALS or method.name in RATES:
        rival = rival_of(model, method)
        learned = {"parameters": sum(x.numel() for x in rival.state().values())} if method.learns else {}
        return {"engine": rival.engine, "choosing": getattr(rival, "choosing", 0.0), **learned}
    learned = {"parameters": model.focus.num_parameters()} if method.kind == "focus" else {}
    return {"engine": "dense mask" if method.name == "soft" else "Focus", **learned}


def title(model: Any, method: tuple[Any, ...]) -> str:
    """How a method is called in tables of this model's: a rival has one budget for all layers, their mean."""
    focus, wanted = model.focus, Method(*method)
    return label(*wanted, top_k=f"{focus.top_k:.3g}" if wanted.name in RIVALS else shown_k(vars(focus.config)))


def label(name: str, number: int | None = None, rate: float | None = None, *, top_k: int | str | None = None) -> str:
    """How a method is called in tables; `top_k` is what is meant without a number."""
    if name in RATES:
        rate = rate or RATES[name]
        return str(FineTuning(rate, 0) if name == "finetune" else LoRA(rate, 0, rank=number or 4))
    titles = {"full": "full attention", "soft": "Focus, soft", "focus": "Focus"}
    titles |= {rival.name: rival.title for rival in RIVALS.values()}
    shown, k = titles.get(name, f"{name} groups"), number or top_k
    return shown if k is None or name in ("full", "soft", "window") else f"{shown}, k = {k}"


def compare(rows: list[Row]) -> None:
    """Adds to each row how its perplexity differs from full attention's on the same windows, paired, and its speed."""
    full = next((row for row in rows if row["kind"] == "full"), None)
    if full is None:
        return
    for row in rows:
        difference = torch.tensor(row["losses"], dtype=torch.float64) - torch.tensor(full["losses"])
        row["over_full"] = float(difference.mean().exp() - 1)
        row["over_full_error"] = (
            float(difference.std() / len(difference) ** 0.5 * difference.mean().exp()) if len(difference) > 1 else None
        )
        row["speed"] = full["seconds"] / row["seconds"]
