"""From nothing to a retrofitted model, its numbers before and after, and a page to look at; part by part, so that what
is done stays done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .config import FocusConfig
from .record import Record, model_facts

Note = Callable[[str], None]
CONFIG = FocusConfig(num_groups=4, top_k=1, window=128)
TOKENS = 1024  # of a window, in training and evaluation


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    fit_windows: int
    fit_steps: int
    windows: int  # to evaluate on
    methods: str
    audited: int  # tokens
    kernel: tuple[int, ...]  # lengths to time
    prefill: tuple[int, ...]
    new_tokens: int


WHOLE = Size(13, 200, 5, "full,window,random,focus,focus:2", 768, (1024, 4096, 16384), (1024, 4096), 40)
FAST = Size(2, 60, 2, "full,window,focus", 320, (1024, 4096), (1024,), 16)


class Quickstart:
    """The parts of a quickstart over one record; each is skipped where the record has it."""

    def __init__(self, output: Path, model: str, data: str, *, fast: bool, command: str, note: Note):
        self.output, self.name, self.data, self.note = output, model, data, note
        self.size = FAST if fast else WHOLE
        self.record = Record(output / "results.json", {"model": model, "data": data, "fast": fast})
        self.record["command"] = command

    def run(self) -> Record:
        start = time.perf_counter()
        record = self.record
        parts: dict[str, Callable[[], Any]] = {
            "training": self.train,
            "quality": self.measure_quality,
            "audit": self.audit,
            "inspection": self.inspect,
            "generation": self.generate,
            "speed": self.time,
        }
        waiting = [name for name in parts if name not in record]
        if waiting:
            self.load(waiting)
        for number, name in enumerate(parts, 1):
            if name not in waiting:
                self.note(f"{number}/{len(parts) + 1} {name}: done before")
                continue
            self.note(f"{number}/{len(parts) + 1} {name}")
            record[name] = parts[name]()
            took = record.setdefault("took", {})  # minutes of each part; the first one's has the loading in it
            took[name] = (time.perf_counter() - start) / 60
            record["minutes"] = sum(took.values())
            start = time.perf_counter()
            record["made"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
            record.save()
        self.note(f"{len(parts) + 1}/{len(parts) + 1} report")
        from .report import write_report

        write_report(record, self.output)
        return record

    def load(self, waiting: list[str]) -> None:
        """The model, with the adapter where that is trained already; the texts; and what a reader wants to know."""
        from .benchmark import machine_facts, versions
        from .evaluation.texts import documents, windows_of
        from .models import load_pretrained
        from .surgery import load_adapter, retrofit
        from .training import Stream, Windows

        training, held = documents(self.data)
        self.note(f"loading {self.name}")
        self.model: Any
        self.model, self.tokenizer = load_pretrained(self.name)
        if "training" in waiting:
            retrofit(self.model, CONFIG)
        else:
            load_adapter(self.model, str(self.output / "adapter"))
        self.training = Windows(Stream(training, self.tokenizer, TOKENS, apart=False), "training text")
        self.held = windows_of(held, "held-out text", self.tokenizer, TOKENS, self.size.windows)
        facts = model_facts(self.model)
        self.record.update(
            title=f"{facts['name']} on {_title(self.data)}",
            model=facts,
            config=CONFIG.to_dict(),
            versions=versions(),
            machine=machine_facts(),
        )

    def train(self) -> dict[str, Any]:
        from .training import TrainConfig, train

        size = self.size
        config = TrainConfig(
            length=TOKENS,
            documents="joined",
            fit_windows=size.fit_windows,
            fit_steps=size.fit_steps,
            fit_starts=4,
            fit_trust=0.0,  # more of it would read each window twice
            steps=0,
        )
        found = train(self.model, self.tokenizer, self.training, self.output / "training", config=config)
        self.model.eval()
        self.model.focus.save_pretrained(self.output / "adapter")
        return {
            "text": _title(self.data),
            "windows": min(size.fit_windows, len(self.training)),
            "tokens": TOKENS,
            **found,
        }

    def measure_quality(self) -> dict[str, Any]:
        from .evaluation import evaluate, parse_methods

        rows = evaluate(self.model, self.held, parse_methods(self.size.methods), lambda row: self.note(_line(row)))
        best = next(row for row in rows if row["kind"] == "focus")
        known = {
            "text": f"{_title(self.data)}, held out",
            "perplexity": round(best["perplexity"], 3),
            "perplexity of full attention": round(rows[0]["perplexity"], 3),
            "distant pairs": round(best["distant"], 3),
        }
        self.model.focus.save_pretrained(self.output / "adapter", results=known)
        return {"text": known["text"], "tokens": TOKENS, "windows": len(self.held), "rows": rows}

    def audit(self) -> dict[str, Any]:
        from .audit import audit

        found = audit(self.model, self.held[0][: self.size.audited])
        failed = [check.name for check in found.checks if check.holds is False]
        self.note("  everything holds" if found.holds else f"  NOT holding: {', '.join(failed)}")
        return found.to_dict()

    def inspect(self) -> dict[str, Any]:
        from .inspection import inspect_text

        return inspect_text(self.model, self.tokenizer, self.held[-1])

    def generate(self) -> list[dict[str, Any]]:
        from .generation import compare_texts

        prompt = self.held[0][None, : TOKENS - 124]
        options = {"max_new_tokens": self.size.new_tokens, "do_sample": False}
        found = compare_texts(self.model, self.tokenizer, prompt, **options)
        self.note(f"  base:  {found['base']!r}\n  Focus: {found['focus']!r}")
        return [found]

    def time(self) -> list[dict[str, Any]]:
        from .benchmark import bench_kernel, bench_prefill

        model, text = self.model, self.model.config.get_text_config(decoder=True)
        heads = (text.num_attention_heads, getattr(text, "num_key_value_heads", None) or text.num_attention_heads)
        size = getattr(text, "head_dim", None) or text.hidden_size // heads[0]
        rows = bench_kernel(self.size.kernel, model.focus.config, heads=heads, head_size=size, repeats=2)
        rows += bench_prefill(model, self.tokenizer, self.size.prefill, repeats=1)
        for row in rows:
            self.note(f"  {row['part']} at {row['tokens']:,} tokens: {row['speedup']:.2f} times full attention's speed")
        return rows


def _title(data: str) -> str:
    titles = {"reference": "the Python language reference", "source": "the standard library's source", "books": "books"}
    return titles.get(data, Path(data).name)


def _line(row: dict[str, Any]) -> str:
    return f"  {row['method']:24} perplexity {row['perplexity']:8.3f} at {row['distant']:.0%} of the distant pairs"
