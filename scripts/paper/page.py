"""Writes docs/paper.md: the studies' results beside the papers' numbers, and where they disagree.

python scripts/paper/page.py
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from study import RESULTS, Study
from summary import Claim, difference, measured, of_settings, samples

from focus_kernels.files import write_atomically

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
STUDIES = (
    "retrofit", "group_dim", "ablation", "k_sweep", "lora", "domains", "balance", "scratch", "transfer", "groups",
    "temperature",
)  # fmt: skip
HEAD = """# The papers' studies, at our scale

Made by `python scripts/paper/page.py` from `results/paper/*.json`, each of which names its command, machine,
versions, model and seeds. The papers trained models of 124M to 70B parameters on GPUs; ours are small, on CPU, so only
the *direction* of a difference is compared, never its size. Perplexity is on held-out documents that share no line with
the training text. How much text the small model's routers see (48 windows in the fit, 160 in the trainer) was chosen on
held-out windows of that same text, by few trials with one seed, which flatters its trained rows a little. What this
model looks for lies near: a window of as many pairs loses less there than groups of any kind (first study). So what
groups are worth is to be read from SmolLM2's rows and [the comparison](results.md), and how settings differ from the
small model's. Intervals are 95%, by Student's t over windows or over seeds, the wider of the two for a difference;
differences are paired by window, and two settings are alike where the interval stays within 5%. Every seed is a row of
its file; means are over all of them.

The same scripts run on the papers' models: `--model gpt2 --text books --device cuda`.

Elsewhere: adapters of other texts, `scripts/train_domains.py`, in [results](results.md); speed, in
[kernels/README.md](../kernels/README.md#speed).
"""
COLUMNS = {  # heading -> value in a summary's row, or None
    "seeds": lambda row: str(len(row["seeds"])),
    "perplexity": lambda row: f"{row['perplexity']:.2f}" if "perplexity" in row else None,
    "over windows": lambda row: _interval(row.get("interval_over_windows")),
    "over seeds": lambda row: _interval(row.get("interval_over_seeds")),
    "difference": lambda row: f"{row['over']:+.1%}" if "over" in row else None,
    "its interval": lambda row: _interval(row.get("over_interval"), "+.1%"),
    "adjusted information": lambda row: f"{row['adjusted_information']:.3f}" if "adjusted_information" in row else None,
    "purity": lambda row: f"{row['purity']:.2f}" if "purity" in row else None,
    "perplexity elsewhere": lambda row: f"{math.exp(row['elsewhere']):.2f}" if "elsewhere" in row else None,
    "TruthfulQA MC1": lambda row: f"{row['truthfulqa_mc1']:.1%}" if "truthfulqa_mc1" in row else None,
    "all pairs": lambda row: f"{row['density']:.0%}" if "density" in row else None,
    "distant pairs": lambda row: f"{row['distant']:.0%}" if "distant" in row else None,
    "largest group": lambda row: f"{row['largest_group']:.0%}" if "largest_group" in row else None,
    "parameters": lambda row: f"{row['parameters']:,.0f}" if "parameters" in row else None,
}


def make_page(results: Path) -> str:
    studies: list[Study] = [import_module(name).STUDY for name in STUDIES]
    found = {study.name: read_records(study, results) for study in studies}
    verdicts = [
        " | ".join(["", link(study), subject(record), claim.says, verdict(record, claim), ""]).strip()
        for study in studies
        for record in found[study.name]
        for claim in study.claims
        if judge(record, claim) is not None
    ]
    parts = [HEAD, "## Where we agree and where not\n"]
    if verdicts:
        parts.append(
            "| study | our model | the paper | ours |\n| --- | --- | --- | --- |\n" + "\n".join(verdicts) + "\n"
        )
    missing = [study.title for study in studies if not found[study.name]]
    if missing:
        parts.append(f"Not run: {'; '.join(missing)}.\n")
    for study in studies:
        parts.append(f"## {study.title}\n\n**Paper.** {study.paper}\n")
        parts += [ours(study, record) for record in found[study.name]] or [not_run(study)]
    return "\n".join(parts)


def read_records(study: Study, results: Path) -> list[dict[str, Any]]:
    """The study's files: of its own model, then of others."""
    paths = [results / f"{study.name}.json", *sorted(results.glob(f"{study.name}-*.json"))]
    return [json.loads(path.read_text()) for path in paths if path.is_file()]


def subject(record: dict[str, Any]) -> str:
    """The model, and the text elsewhere where a study has one."""
    elsewhere = record["asked"].get("elsewhere")
    return record["model"]["name"] + (f", elsewhere `{elsewhere}`" if elsewhere else "")


def not_run(study: Study) -> str:
    return f"**Ours.** Not run: `python scripts/paper/{study.name}.py`.\n"


def ours(study: Study, record: dict[str, Any]) -> str:
    asked, model = record["asked"], record["model"]
    cells = list(record["cells"].values())
    counted = len(
        samples(cells[0], "perplexity" if "losses" in cells[0] else "adjusted_information")
    )  # there may be few
    lengths = sorted({cell["settings"].get("length", asked["length"]) for cell in cells})
    text = asked.get("domains") or asked["text"]
    head = (
        f"**Ours**, {subject(record)} ({model['parameters'] / 1e6:.3g}M parameters, {model['layers']} layers), text "
        f"`{text}`, {counted} windows of {', '.join(map(str, lengths))} tokens, window {asked['window']}; "
        f"`{record['command']}`."
    )
    asked_for = cells[0].get("benchmarks", {})
    if asked_for:
        head += " Benchmarks: " + ", ".join(f"{x['items']} items of {task}" for task, x in asked_for.items()) + "."
    if "remark" in record:
        head += f" *{record['remark']}*"
    if len(cells) < record["planned"]:
        head += f" **{len(cells)} of {record['planned']} cells were run.**"
    if any(cell.get("leaks") for cell in cells):
        head += " *Rows with † route by later tokens too: their perplexity is not one of prediction.*"
    return head + "\n\n" + table(record["summary"], cells)


def table(rows: list[dict[str, Any]], cells: list[dict[str, Any]]) -> str:
    """Columns that some row has a value for."""
    shown = {name: [value(row) for row in rows] for name, value in COLUMNS.items()}
    shown = {name: values for name, values in shown.items() if any(value is not None for value in values)}
    labels = []
    for row in rows:
        same = of_settings(cells, row["settings"])
        labels.append(name_of(row["settings"]) + (" †" if any(cell.get("leaks") for cell in same) else ""))
    lines = [["setting", *shown], ["---"] * (1 + len(shown))]
    lines += [[x, *(value or "-" for value in values)] for x, *values in zip(labels, *shown.values(), strict=True)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def name_of(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def judge(record: dict[str, Any], claim: Claim) -> tuple[str, str] | None:
    """(verdict, our difference) of a claim, None where its cells were not run, or not asked for what it measures."""
    cells = list(record["cells"].values())
    a, b = (of_settings(cells, wanted) for wanted in (claim.a, claim.b))
    if not (a and b and all(measured(cell, claim.measure) for cell in (*a, *b))):
        return None
    found = difference(a, b, claim.measure)
    logarithm = claim.measure in ("perplexity", "elsewhere")
    scale = math.expm1 if logarithm else float
    form = "+.1%" if logarithm or claim.measure in ("largest_group", "truthfulqa_mc1") else "+.3f"
    ends = None if found.half is None else [scale(found.mean - found.half), scale(found.mean + found.half)]
    measure = {"elsewhere": "perplexity elsewhere"}.get(claim.measure, claim.measure.replace("_", " "))
    return found.verdict(
        claim.expect, claim.least
    ), f"{measure} {format(scale(found.mean), form)} {_interval(ends, form) or ''}".strip()


def verdict(record: dict[str, Any], claim: Claim) -> str:
    judged = judge(record, claim)
    if judged is None:
        return "not run"
    word, numbers = judged
    return f"{f'**{word}**' if word.startswith('disagrees') else word}: {numbers}"


def _interval(ends: list[float] | None, form: str = ".2f") -> str | None:
    return None if ends is None else f"[{format(ends[0], form)}, {format(ends[1], form)}]"


def link(study: Study) -> str:
    """To its heading, as code hosts name it."""
    anchor = "".join(x for x in study.title.lower() if x.isalnum() or x in "_- ").replace(" ", "-")
    return f"[{study.title}](#{anchor})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--output", type=Path, default=PAGE)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page is not current")
    options = parser.parse_args()
    page = make_page(options.results)
    if options.check:
        return int(not options.output.is_file() or options.output.read_text() != page)
    write_atomically(options.output, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
