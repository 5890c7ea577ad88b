"""What the studies share: options, a model and its text, trained routers, and a file of results that grows by cells."""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from small import RECIPES, first, load_small
from summary import Claim, Settings, summarise

from focus_kernels.errors import FocusError

if TYPE_CHECKING:
    from torch import Tensor

LISTS = ("seeds", "methods", "lengths", "budgets")  # options that add cells, and change none
RESULTS = Path(__file__).parents[2] / "results" / "paper"


@dataclass(frozen=True)
class Size:
    """How large a study is by default, for a kind of model."""

    length: int
    window: int
    windows: int
    seeds: int
    steps: int  # of the trainer
    batch: int  # windows of each
    fit_windows: int
    fit_steps: int
    finetune_steps: int  # of all weights
    finetune_rate: float
    scratch_steps: int
    scratch_batch: int
    scratch_rate: float
    text: str
    characters: int | None = None  # of the text that are used, training and held out; None is all

    @property
    def shown(self) -> int:
        """Windows that routers are trained on, fit and trainer together: others that learn are given as many."""
        return self.fit_windows + self.steps * self.batch


SIZES = {
    "tiny": Size(
        length=96, window=8, windows=2, seeds=1, steps=2, batch=1, fit_windows=2, fit_steps=4,
        finetune_steps=2, finetune_rate=1e-3, scratch_steps=2, scratch_batch=2, scratch_rate=1e-3,
        text="source", characters=30_000,
    ),
    "small": Size(
        length=512, window=32, windows=24, seeds=3, steps=80, batch=2, fit_windows=48, fit_steps=200,
        finetune_steps=150, finetune_rate=2e-4, scratch_steps=400, scratch_batch=4, scratch_rate=3e-3,
        text="source",
    ),
    "real": Size(
        length=1024, window=128, windows=8, seeds=1, steps=130, batch=1, fit_windows=72, fit_steps=800,
        finetune_steps=300, finetune_rate=2e-5, scratch_steps=2000, scratch_batch=8, scratch_rate=3e-4,
        text="reference",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Study:
    """A table of a paper: `cells` lists its settings, `measure` finds one cell's numbers. `against` names the settings
    that others are compared with, window by window."""

    name: str
    title: str
    paper: str  # its numbers, as a line of text
    cells: Callable[[Bench], list[Settings]]
    measure: Callable[[Bench, Settings], dict[str, Any]]
    claims: Sequence[Claim] = ()
    against: Callable[[Settings], Settings] = field(default=lambda settings: {"method": "full"})
    model: str = "small"
    weights: bool = True  # those of the model are used; False: its architecture and tokenizer alone
    extra: Callable[[argparse.ArgumentParser], Any] = field(default=lambda parser: None)

    def main(self, words: Sequence[str] | None = None) -> None:
        words = sys.argv[1:] if words is None else words
        options = self.parse(words)
        try:
            self.run(options, f"python scripts/paper/{self.name}.py {shlex.join(words)}".strip())
        except FocusError as error:
            raise SystemExit(f"{self.name}: {error}") from None

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=f"{self.title}. Goes on where it stopped.")
        add = parser.add_argument
        add("--model", default=self.model, help=f"{', '.join(RECIPES)} (trained here), or what load_pretrained takes")
        add("--adapter", help="routers that are trained already, for studies that train one set of them")
        add("--text", help="reference, source, books, files, or a dataset's name on the hub")
        add("--windows", type=int, help="held-out windows")
        add("--length", type=int, help="tokens of a window")
        add("--steps", type=int, help="steps of the trainer, wherever it runs")
        add("--seeds", type=int, help="seeds, each a row; more of them later are added")
        add("--device", default="cpu")
        add("--fast", action="store_true", help="a quarter of windows and steps, one seed: to see it run")
        add("--output", type=Path, help="file of results")
        add("--runs", type=Path, default=Path("runs/paper"), help="folder of trained models and routers")
        self.extra(parser)
        return parser.parse_args(words)

    def run(self, options: argparse.Namespace, command: str) -> None:
        from tqdm.auto import tqdm

        from focus_retrofit.benchmark import machine_facts, versions
        from focus_retrofit.record import Record, model_facts

        name = self.name if options.model == self.model else f"{self.name}-{Path(options.model).name}"
        bench = Bench(options, self.weights)
        record = Record(options.output or RESULTS / f"{name}.json", bench.asked)
        record.update(study=self.name, title=self.title, command=command, overlap=bench.overlap)
        record.update(model=model_facts(bench.model), versions=versions(), machine=machine_facts())
        cells: dict[str, Any] = record.setdefault("cells", {})
        wanted = [{"seed": None, **settings} for settings in self.cells(bench)]
        record["planned"] = len(wanted)

        def keep() -> None:
            record["summary"] = summarise(list(cells.values()), self.against)
            record.save()

        if cells:
            keep()
        for settings in tqdm(wanted, desc=self.name, unit=" cells"):
            key = ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)
            if key in cells:
                continue
            begun = time.perf_counter()
            found = self.measure(bench, settings)
            facts = {"settings": settings, "seed": settings["seed"], "command": command}
            facts["minutes"] = (time.perf_counter() - begun) / 60
            cells[key] = {
                **facts,
                **{name: x for name, x in found.items() if name not in ("by_position", "by_doubling", "seconds")},
            }
            keep()


@contextmanager
def unloaded(model: Any) -> Iterator[Any]:
    """Takes Focus out again afterwards."""
    try:
        yield model
    finally:
        model.focus.unload()


def groups_per_query(model: Any, part: str) -> int:
    """So many that they are this part of a model's groups: '1/2' is 2 of 4 and 4 of 8."""
    return max(1, round(Fraction(part) * model.focus.config.num_groups))


@cache
def split_text(text: str) -> tuple[list[str], list[str]]:
    """(training, held-out) documents of a text by name, of files, or of a dataset."""
    from focus_retrofit.evaluation.texts import TEXTS, comes_along, split
    from focus_retrofit.training import load_texts

    if not comes_along(text):
        TEXTS[text] = lambda: list(load_texts(text))
    return split(text)


class Bench:
    """A model, its text cut into windows that do not overlap, and routers trained on it, kept in a folder."""

    def __init__(self, options: argparse.Namespace, weights: bool = True):
        size = SIZES.get(options.model, SIZES["real"])
        if options.fast:
            parts = ("windows", "steps", "fit_windows", "fit_steps", "finetune_steps", "scratch_steps")
            size = replace(size, seeds=1, **{name: max(1, getattr(size, name) // 4) for name in parts})
        given = {name: getattr(options, name) for name in ("length", "windows", "seeds", "text")}
        if options.steps is not None:
            given.update(dict.fromkeys(("steps", "finetune_steps", "scratch_steps"), options.steps))
        self.size = replace(size, **{name: value for name, value in given.items() if value is not None})
        self.options, self.weights = options, weights
        self.texts: dict[str, tuple[list[str], list[str]]] = {}
        self.cut: dict[tuple[str, int], list[Tensor]] = {}
        everything = {**vars(options), **vars(self.size)}
        self.asked = {name: x for name, x in everything.items() if name not in (*LISTS, "output", "runs")}

    @cached_property
    def loaded(self) -> tuple[Any, Any]:
        from focus_retrofit import load_pretrained

        if self.options.model in RECIPES:
            model, tokenizer = load_small(self.options.model, self.options.runs, self.weights)
        else:
            model, tokenizer = load_pretrained(self.options.model)
        return model.to(self.options.device), tokenizer

    @property
    def model(self) -> Any:
        return self.loaded[0]

    @property
    def tokenizer(self) -> Any:
        return self.loaded[1]

    def on(self, text: str) -> Bench:
        """The same model with another text to train on and to measure on."""
        other = copy.copy(self)
        other.__dict__ = {**self.__dict__, "loaded": self.loaded, "size": replace(self.size, text=text)}
        other.__dict__.pop("training", None)
        return other

    def split(self, text: str) -> tuple[list[str], list[str]]:
        """(training, held-out) documents; that they share no line is checked."""
        from focus_retrofit.evaluation.texts import overlap

        if text not in self.texts:
            training, held = (first(part, self.size.characters) for part in split_text(text))
            self.texts[text] = training, held
            share = overlap(training, held)
            if share > 0:
                raise FocusError(f"{share:.1%} of the held-out lines of {text!r} are in its training text too")
        return self.texts[text]

    @property
    def overlap(self) -> float:
        from focus_retrofit.evaluation.texts import overlap

        return overlap(*self.split(self.size.text))

    @cached_property
    def training(self) -> Any:
        """Windows of the training text."""
        from focus_retrofit.training import Stream, Windows

        return Windows(Stream(self.split(self.size.text)[0], self.tokenizer, self.size.length, apart=False), "text")

    def held(self, length: int | None = None, text: str | None = None) -> list[Tensor]:
        """Windows of held-out text, spread over it."""
        from focus_retrofit.evaluation.texts import windows_of

        text, length = text or self.size.text, length or self.size.length
        if (text, length) not in self.cut:
            documents = self.split(text)[1]
            self.cut[text, length] = windows_of(documents, text, self.tokenizer, length, self.size.windows)
        return self.cut[text, length]

    @property
    def seeds(self) -> range:
        """One where the routers are given."""
        return range(1 if self.options.adapter else self.size.seeds)

    def focus(self, **changes: Any) -> dict[str, Any]:
        """Options of the retrofit where a study does not change them."""
        return {"num_groups": 4, "top_k": 1, "window": self.size.window, "temperature": "learned", **changes}

    def recipe(self, seed: int, **changes: Any) -> Any:
        from focus_retrofit.training import TrainConfig

        size = self.size
        common = {name: getattr(size, name) for name in ("length", "steps", "fit_windows", "fit_steps")}
        fit = {"fit_rounds": 2, "fit_trust": 0.0}  # as all studies so far were run
        rest = {"batch_size": size.batch, "documents": "joined", "eval_every": 0, "seed": seed}
        return TrainConfig(**{**common, **fit, **rest, **changes})

    @contextmanager
    def untrained(self, seed: int = 0, **focus: Any) -> Iterator[Any]:
        """The model with random routers, balanced on training text."""
        from focus_retrofit import FocusConfig, retrofit

        config = FocusConfig(**self.focus(temperature=None, **focus))
        with unloaded(retrofit(self.model, config, seed=seed)) as model:
            self.balance(model)
            yield model

    def balance(self, model: Any) -> None:
        """Even groups on a little of the training text."""
        import torch

        some = [self.training[n]["input_ids"] for n in range(min(4, len(self.training)))]
        model.focus.balance(torch.stack(some).to(model.device))

    @contextmanager
    def trained(
        self, seed: int, train: dict[str, Any] | None = None, *, scratch: bool = False, **focus: Any
    ) -> Iterator[Any]:
        """The model with trained routers: those of --adapter where nothing is changed, else trained once and kept.
        scratch: all weights begin at random, drawn by the seed. The model itself stays as it was."""
        from focus_retrofit import FocusConfig, load_adapter, retrofit
        from focus_retrofit.training import train as train_routers

        if self.options.adapter and not (train or focus or scratch):
            with unloaded(load_adapter(self.model, self.options.adapter)) as model:
                yield model
            return
        config, recipe = FocusConfig(**self.focus(**focus)), self.recipe(seed, **(train or {}))
        whole = scratch or recipe.finetune_steps or not recipe.frozen
        model = self.fresh(seed) if scratch else copy.deepcopy(self.model) if whole else self.model
        made_of = [self.options.model, self.size.text, scratch, config.to_dict(), vars(recipe)]
        mark = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]
        with unloaded(retrofit(model, config, seed=seed)):
            train_routers(model, self.tokenizer, self.training, self.options.runs / "trained" / mark, config=recipe)
            yield model.eval()

    def fresh(self, seed: int) -> Any:
        """The model's architecture with random weights."""
        import torch
        from transformers import AutoModelForCausalLM

        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(copy.deepcopy(self.model.config)).to(self.options.device)

    def measure(self, model: Any, method: str = "focus", *, seed: int = 0, windows: Any = None) -> dict[str, Any]:
        """Perplexity and density of one method on held-out windows, and whether its routing sees the future."""
        from focus_retrofit.evaluation import attending, parse_methods, perplexity

        (parsed,) = parse_methods(method)
        with attending(model, *parsed, seed=seed):
            found = perplexity(model, self.held() if windows is None else windows, method)
        if parsed[0] == "soft":
            found["density"] = found["distant"] = 1.0  # dense, gated
        if parsed[0] in ("focus", "soft"):
            found.update(leaks=model.focus.config.leaks, parameters=model.focus.num_parameters())
        return found

    def full(self) -> dict[str, Any]:
        """The model as it is."""
        from focus_retrofit.evaluation import perplexity

        return perplexity(self.model, self.held(), "full")
