"""Writes the tables of the READMEs and docs from the result files; --check says whether they are current."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from focus_kernels.files import write_atomically

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "kernels" / "results"
PICTURE = "docs/images/positions.png"
FIRST = ("k8-k1", "long")
HEADLINES = {"k8-k1": ("1/1", "focus cpu:sorted"), "long": ("1/1", "focus auto"), "gqa": ("9/3", "focus cpu:sorted")}


def tokens(count: int) -> str:
    return f"{count >> 20}M" if count >= 1 << 20 else f"{count >> 10}K"


def table(head: str, rows: list[list[str]]) -> str:
    names = [name.strip() for name in head.split("|")]
    lines = [names, ["---"] * len(names), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def kernel_records(wanted: set[str] | None = None) -> list[dict[str, Any]]:
    """Result files of the kernel benchmark, the most asked for first; decoding has a schema of its own."""
    paths = sorted(KERNELS.glob("*.json"), key=lambda path: (path.stem not in FIRST, path))
    records = [{"file": path.stem, **json.loads(path.read_text())} for path in paths]
    return [r for r in records if r["schema"] == 1 and (wanted is None or r["file"] in wanted)]


def shape(record: dict[str, Any]) -> str:
    layer = record["layer"]
    text = f"K={layer['num_groups']} k={layer['top_k']} {layer['match']}, heads {layer['q_heads']}/{layer['kv_heads']}"
    return text + (", forward + backward" if "--backward" in record["command"] else "")


def number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def kernel_row(record: dict[str, Any], result: dict[str, Any]) -> list[str]:
    milliseconds = result["seconds"] * 1e3
    return [
        shape(record),
        tokens(result["tokens"]),
        result["method"] + (" (sampled)" if result["sampled"] else ""),
        f"{milliseconds:.1f}" if milliseconds < 1000 else f"{milliseconds:.0f}",
        f"{result['density']:.1%}",
        number(result["pair_bound"]),
        number(result["speedup"]),
        number(result["speedup_over_one_call"]),
        number(result["efficiency"]),
        number(result["memory_ratio"]),
    ]


def machine(record: dict[str, Any]) -> str:
    m = record["machine"]
    return f"{m['cpu']}, {m['threads']} threads, {m['capability']}, torch {m['torch']}"


def all_kernels() -> str:
    records = kernel_records()
    rows = [kernel_row(r, one) for r in records for one in r["results"] if not one["method"].startswith("full")]
    where = " and ".join(sorted({machine(r) for r in records}))
    head = "layer | tokens | method | ms | density | bound | speedup | over one call | efficiency | memory"
    return table(head, rows) + (
        f"\nMeasured on {where}; fp32, head size 64. Each file in kernels/results names its command; "
        "`scripts/bench_kernels.sh` has them all.\n"
    )


def headlines() -> str:
    rows = []
    for record in kernel_records(set(HEADLINES)):
        heads, method = HEADLINES[record["file"]]
        for one in record["results"]:
            if one["method"] == method:
                row = kernel_row(record, one)
                rows.append([row[1], heads, *row[4:6], *row[6:10]])
    return (
        "**One attention layer, whole sequence**, K = 8, k = 1, window 128, over full FlashAttention, same engine "
        "(the faster of its two forms; short lengths lose); `bash scripts/bench_kernels.sh`. Every method and its "
        "command: [kernels/README.md](kernels/README.md#speed).\n\n"
        + table("tokens | heads | density | bound | speedup | over one call | efficiency | memory", rows)
    )


def strongest(one: dict[str, Any]) -> dict[str, Any]:
    """The fastest way found to read a full cache at this length."""
    (best,) = (full for full in one["full"] if full["strongest"])
    return best


def decoding() -> str:
    record = json.loads((KERNELS / "decode.json").read_text())
    head = "context | full ms | with torch.cat | Focus ms | MB read | by Focus | bound | speedup | efficiency | cache"
    rows = [
        [
            tokens(one["tokens"]),
            *(f"{ms:.1f}" for ms in (strongest(one)["step_ms"], one["cat_step_ms"], one["focus_step_ms"])),
            *(f"{one[name] / 1e6:.0f}" for name in ("full_bytes_read", "focus_bytes_read")),
            *(number(one[name]) for name in ("pair_bound", "speedup", "efficiency", "cache_ratio")),
        ]
        for one in record["results"]
    ]
    return (
        "**Decoding**, attention of 30 layers, 9/3 heads of 64 (SmolLM2-135M), K = 8, k = 1, ms per token "
        f"(`{' '.join(record['command'])}`). *Full* is the fastest of seven ways to read a full cache, written to in "
        "place; *with torch.cat* is one that grows as transformers' does. *Cache* is memory over the full cache's.\n\n"
        + table(head, rows)
    )


def untrained() -> str:
    record = json.loads((ROOT / "results" / "untrained_router.json").read_text())
    rows = [
        [r["method"], f"{r['distant']:.0%}", f"{r['perplexity']:.2f} ± {r['standard_error']:.2f}"]
        for r in record["rows"]
    ]
    return (
        f"**Before any training**, SmolLM2-135M on the Python reference, {record['windows']} windows of "
        f"{record['tokens']} tokens, K = 4, k = 1, window 128 (`{record['command']}`). The standard error is over "
        "windows, which differ much; the methods are compared on the same ones.\n\n"
        + table("attention | distant pairs | perplexity", rows)
    )


def domains() -> dict[str, Any]:
    return json.loads((ROOT / "results" / "domains.json").read_text())


def over(row: dict[str, Any], full: dict[str, Any]) -> str:
    return f"{row['perplexity'] / full['perplexity'] - 1:+.1%}"


def largest(record: dict[str, Any]) -> float:
    """Share of the largest group in any layer, trained."""
    return max(row["largest_group"] for row in record["rows"] if row["method"].startswith("trained"))


def trained() -> str:
    """Every method on every domain's held-out text."""
    records = {name: record for name, record in domains().items() if "rows" in record}
    first = next(iter(records.values()))
    head = " | ".join(["attention", "distant pairs", *(f"{name} | over full" for name in records)])
    rows = []
    for number, row in enumerate(first["rows"]):
        cells = [row["method"], f"{row['distant']:.0%}"]
        for record in records.values():
            cells += [f"{record['rows'][number]['perplexity']:.2f}", over(record["rows"][number], record["rows"][0])]
        rows.append(cells)
    notes = [
        f"{name}: {record['training']['minutes']:.0f} minutes of training on 2 cores, {record['windows']} held-out "
        f"windows, standard error of full attention's perplexity {record['rows'][0]['standard_error']:.2f}, largest "
        f"group {largest(record):.0%}, change of a past logit by the future {record['leak']:g} (`{record['command']}`)"
        + (f"; {record['remark']}" if "remark" in record else "")
        for name, record in records.items()
    ]
    return (
        f"**After training**, perplexity of SmolLM2-135M on held-out documents, {first['tokens']} tokens, K = 4, "
        f"window 128, {first['parameters']:,} parameters; of the training text everything is left out that held-out "
        "text repeats.\n\n" + table(head, rows) + "\n" + "".join(f"- {note}\n" for note in notes)
    )


def across() -> str:
    """Each adapter on each domain."""
    record = domains()["across"]
    names = list(record["full attention"])
    rows = [
        [
            name,
            *(f"{row[text]['perplexity']:.2f} ({over(row[text], record['full attention'][text])})" for text in names),
        ]
        for name, row in record.items()
    ]
    return (
        "**Each adapter on the others' text** (hard, k = 1; `python scripts/train_domains.py --across`), switched by "
        "name on one base model.\n\n" + table(" | ".join(["adapter", *names]), rows)
    )


def training_cost() -> str:
    """Time and memory of a training step's attention, by length; each row has full attention beside it."""
    record = json.loads((ROOT / "results" / "training_cost.json").read_text())
    rows: list[list[str]] = []
    for row in record["rows"]:
        if not rows or rows[-1][0] != tokens(row["tokens"]):
            full = ["full attention", f"{row['full_seconds']:.3f}", f"{row['full_bytes'] / 1e6:.0f}", "1.00", "1.00"]
            rows.append([tokens(row["tokens"]), *full])
        cells = [f"{row['focus_seconds']:.3f}", f"{row['focus_bytes'] / 1e6:.0f}"]
        cells += [number(row[name]) for name in ("speedup", "bound")]
        rows.append([tokens(row["tokens"]), row["setup"].partition("window 128, ")[2], *cells])
    grown = {"full attention": record["growth"][0], **{one["setup"]: one for one in record["growth"]}}
    words = [
        f"{setup.rpartition('window 128, ')[2]}: {one[side + '_seconds']:.2f} and {one[side + '_bytes']:.2f}"
        for (setup, one), side in zip(grown.items(), ["full", *["focus"] * len(record["growth"])], strict=True)
    ]
    return (
        "**Attention of one layer in a training step**, forward and backward, 9/3 heads of 64, K = 8, k = 1, window "
        f"128 (`{record['command']}`"
        + (f"; {record['remark']}" if "remark" in record else "")
        + ").\n\n"
        + table("tokens | objective | seconds | MB | times full | bound", rows)
        + "\nGrowth, exponents of time and memory fitted to the longer half of the lengths: "
        + "; ".join(words)
        + ".\n"
    )


def recipes() -> str:
    """What was tried on the way to the default recipe."""
    record = json.loads((ROOT / "results" / "recipes.json").read_text())
    rows = [
        [r["recipe"], f"{r['minutes']:.0f}", f"{r['distant']:.0%}", f"{r['perplexity']:.3f}", f"{r['over']:+.1%}"]
        for r in record["rows"]
    ]
    head = "recipe | minutes | distant pairs | perplexity | over full"
    return f"**Recipes**, {record['what']} (`{record['command']}`).\n\n" + table(head, rows)


def sizes() -> str:
    """What training the routers takes by the size of the model, as `focus-retrofit plan` says."""
    from focus_retrofit.planning.training import plan

    setups = [("gpt2", 1, "t4-16"), ("mistral-7b", 1, "rtx4090-24"), ("llama-2-7b", 2, "a100-40")]
    setups += [("llama-2-13b", 1, "rtx4090-24"), ("llama-2-13b", 4, "rtx4090-24")]
    setups += [("llama-2-70b", 1, "h100-80"), ("llama-2-70b", 8, "h100-80")]
    rows = []
    for model, gpus, gpu in setups:
        found = plan(model, gpu=gpu, gpus=gpus, length=1024 if model == "gpt2" else 2048)
        best = found.recommended
        if best is None or best.memory is None:
            raise SystemExit(f"nothing fits: {model} on {gpus} x {gpu}")
        size, adapter = f"{found.run.model.parameters / 1e9:.2g}B", f"{found.run.adapter / 1e6:.1f}M"
        kept = "yes" if best.checkpointing else "no"
        cells = [best.name, kept, f"{best.memory.to_dict()['total'] / 1e9:.0f}", f"{best.hours:.1g}"]
        rows.append([model, size, adapter, str(found.run.length), f"{gpus} x {gpu}", *cells])
    head = "model | size | routers | tokens | GPUs | way | checkpointing | GB each | hours for 1000 steps"
    return table(head, rows)


def comparison() -> str:
    """Focus beside its rivals."""
    record = json.loads((ROOT / "results" / "compare.json").read_text())
    titles = list(record["perplexity"])
    rows = [
        [
            row["method"],
            *(f"{row[x]:.0%}" for x in ("distant", "density")),
            f"{row['choosing']:.1%}" if row["choosing"] else "-",
            "-" if row["engine"] == "dense mask" else f"{row['speed']:.2f}",
            f"{row['parameters']:,}" if row["parameters"] else "-",
            *(row[title] for title in titles),
        ]
        for row in record["table"]
    ]
    asked = record["asked"]
    return (
        f"**Against rivals**, SmolLM2-135M, {asked['windows']} windows of each text, K = 4, window 128, perplexity "
        "with the paired change over full attention. Rivals that learn did so on the text of the first column, "
        f"{asked['train_windows']} windows, weights for {asked['steps']} steps; the shipped adapter of Focus had 72 "
        "windows and 130 steps of it, and its recipe was chosen on held-out windows of that text, which flatters it "
        "there. Speed is that of whole passes over these windows, in turn; a method that is only "
        "a mask has none. *Choosing* is what the choice of keys costs beside the pairs, as a share of full attention. "
        f"[What they are](evaluation.md#methods); `{record['command']}`.\n\n"
        + table(" | ".join(["method", "distant pairs", "all pairs", "choosing", "speed", "learned", *titles]), rows)
        + "\n![perplexity by pairs and by speed](images/compare.png)\n"
    )


def benchmarks() -> str:
    """Base and Focus on the same items, a file for each number of examples."""
    records = [json.loads(path.read_text()) for path in sorted((ROOT / "results").glob("benchmarks-*.json"))]
    rows = []
    for row in (row for record in records for row in record["answers"]):
        change = flips = "-"
        if row["kind"] != "full":
            change = f"{row['over_full']:+.1%} ± {number(row['over_full_error'], '.1%')}"
            flips = f"{row['lost']} / {row['gained']} / {row['changed']}"
        beyond, task = f"{row['beyond']} of {row['items']}", f"{row['task']}, {row['shots']}"
        rows.append([task, row["method"], f"{row['tokens_mean']:.0f}", beyond, f"{row['value']:.1%}", change, flips])
    checked = sum(record["checked_within_the_window"] for record in records)
    commands = "; ".join(f"`{record['command']}`" for record in records)
    return (
        "**Benchmarks**, SmolLM2-135M with the shipped adapter, all methods on the same items; *beyond* are items "
        "longer than the window, the others are the base model's by construction (checked for Focus: "
        f"{checked} answers). {commands}.\n\n"
        + table("task, examples | attention | tokens | beyond | score | over full | lost / gained / changed", rows)
    )


def retrieval() -> str:
    """What is found far back."""
    record = json.loads((ROOT / "results" / "retrieval.json").read_text())
    rows = []
    for row in record["rows"]:
        low, high = row["interval"]
        over = row["over_full"]
        change = "-" if over is None else f"{over['nll']:+.2f} ± {over['nll_error']:.2f}"
        found = f"{row['accuracy']:.0%} ({low:.0%} to {high:.0%})"
        rows.append([row["task"], row["method"], f"{row['density']:.0%}", found, f"{row['nll']:.2f}", change])
    asked = record["asked"]
    lengths, depths = (", ".join(f"{x:,}" for x in asked[name]) for name in ("lengths", "depths"))
    return (
        f"**Retrieval**, SmolLM2-135M with the shipped adapter, {lengths} tokens, depths {depths}, {asked['items']} "
        "items each, the same for all; *found* with a 95 % interval, negative log-likelihood of the answer with the "
        f"paired change. `{record['command']}`.\n\n"
        + table("task | attention | all pairs | found | nll | over full", rows)
        + "\n![passkeys found, by depth and length](images/passkey.png)\n"
    )


def positions() -> str:
    """Perplexity by range of positions, scaling and attention; what Focus costs is paired."""
    path = ROOT / "results" / "positions.json"
    if not path.is_file():
        return "Not measured yet: `python scripts/positions.py` writes the file that this table is made from.\n"
    record = json.loads(path.read_text())
    titles = {"full": "full", "focus": f"Focus, K = {record['config']['num_groups']}, k = {record['config']['top_k']}"}
    names = [f"{tokens(x['from']) if x['from'] else '0'} to {tokens(x['to'])}" for x in record["rows"][0]["ranges"]]
    rows = []
    for row in record["rows"]:
        cells = [f"{x['perplexity']:.2f} ± {x['standard_error']:.2f}" for x in row["ranges"]]
        over = [f" ({x['over']:+.1%} ± {x['over_error']:.1%})" if "over" in x else "" for x in row["ranges"]]
        both = [cell + change for cell, change in zip(cells, over, strict=True)]
        rows.append([row["rope"], titles[row["method"]], f"{row['density']:.0%}", f"{row['seconds']:.0f}", *both])
    made_for, asked = tokens(record["made_for"]), record["asked"]
    count = record["texts"]
    return (
        f"**Perplexity by position**, {record['model']['name']}, made for {made_for}, on {count} "
        f"text{'s' if count > 1 else ''} of {tokens(asked['length'])} tokens from `{asked['text']}`, factor "
        f"{record['factor']:g}. Standard errors over segments of 128 tokens; in brackets Focus over full attention "
        f"with the same scaling, paired by segment. *Pairs* is the share that was computed, *s* seconds of one text. "
        f"{record['machine']['processor']}, {record['machine']['threads']} threads; `{record['command']}`.\n\n"
        + table(" | ".join(["rope", "attention", "pairs", "s", *names]), rows)
        + ("\n![perplexity by position](images/positions.png)\n" if (ROOT / PICTURE).is_file() else "")
    )


def of_part(row: dict[str, Any], name: str) -> str:
    seconds = row[name]
    if row["part"] == "decode":
        return f"{1 / seconds:.1f} tokens/s"
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def long_rows(file: str) -> list[list[str]]:
    """Of a whole model, from a file of `focus-retrofit bench`."""
    found = json.loads((ROOT / "results" / f"{file}.json").read_text())["rows"]
    return [
        [
            row["part"],
            ", ".join(row["setup"].split(", ")[1:3]),
            (tokens(row["tokens"]) if row["tokens"] >= 1024 else str(row["tokens"]))
            + ("\\*" if row["beyond_positions"] else ""),
            of_part(row, "full_seconds") + (" (sampled)" if row["sampled"] else ""),
            of_part(row, "focus_seconds"),
            *(number(row[name]) for name in ("speedup", "bound")),
            *(number(row[name], ".0%") for name in ("density", "attention_share")),
            number(row["memory"]),
        ]
        for row in found
    ]


LONG_HEAD = "part | model | tokens | full attention | Focus | speedup | bound | pairs | attention | memory"
LONG_NOTE = (
    "*Full attention* is the fastest form found there; *bound* what the share of pairs computed allows, the rest of "
    "the model included; *attention* its share of the time with full attention: where it is small, so is the gain; "
    "*memory* peak over that of full attention in the same chunks, weights apart (decode: the caches). A prefill's "
    "time is the time to the first token. \\* is beyond the model's positions: the speed is real, the text is not. "
    "*Sampled*: of one layer some blocks of queries against all their keys, scaled.\n"
)


def long_files() -> list[str]:
    return sorted(path.stem for path in (ROOT / "results").glob("long-*.json"))


def long_prompts() -> str:
    """Every file of whole-model speed, with its command."""
    parts = []
    for file in long_files():
        record = json.loads((ROOT / "results" / f"{file}.json").read_text())
        setups = "; ".join(sorted({row["setup"] for row in record["rows"]}))
        m = record["machine"]
        where = f"{m['processor']}, {m['threads']} threads, {m['instructions']}"
        parts.append(f"**{setups}** ({where}; `{record['command']}`)\n\n" + table(LONG_HEAD, long_rows(file)))
    return "\n".join([*parts, LONG_NOTE]) if parts else "Not measured yet.\n"


def long_headlines() -> str:
    rows = [row for file in long_files() if "auto" not in file for row in long_rows(file)]
    return (
        "**Whole model**, SmolLM2-135M (longest prompts: its first layers), k = 1, window 128, two cores; commands, "
        "other lengths and what the columns are: [docs/long.md](docs/long.md#how-fast-how-large).\n\n"
        + table(LONG_HEAD, rows)
    )


def front_page() -> str:
    return "\n".join((trained(), *([long_headlines()] if long_files() else []), decoding(), headlines()))


def results_page() -> str:
    parts = [("compare", comparison), ("benchmarks-0", benchmarks), ("retrieval", retrieval)]
    parts += [("untrained_router", untrained), ("recipes", recipes), ("training_cost", training_cost)]
    found = [make() for file, make in parts if (ROOT / "results" / f"{file}.json").is_file()]
    return "\n".join([*found, across()] if "across" in domains() else found)


CHECKED = [f"kernels/results/{name}.json" for name in ("k8-k1", "long", "decode")]
CHECKED.append("results/long-prefill.json")
FIT_TO = 16


def checked() -> str:
    """What the cost model says of the rows that no rate was fitted on."""
    from focus_retrofit.planning import find_model
    from focus_retrofit.planning.check import check_bench
    from focus_retrofit.planning.measured import read_rows

    rows = [row for file in CHECKED for row in read_rows(ROOT / file)]
    found = check_bench(rows, model=find_model("smollm2-135m"), fit_to=FIT_TO << 10)
    lines, told = [], ""
    for row in found.predictions:
        if row.fitted:
            continue
        fitted = [
            tokens(x.tokens) for x in found.predictions if x.fitted and (x.part, x.setup) == (row.part, row.setup)
        ]
        what = f"{row.part}, {row.setup}"
        ratios = [f"{row.full_ratio:.2f}", f"{row.focus_ratio:.2f}"]
        speedups = [f"{row.speedup:.2f}", f"{row.speedup_predicted:.2f}"]
        lines.append([what if what != told else "", ", ".join(fitted), tokens(row.tokens), *ratios, *speedups])
        told = what
    files = "".join(f" --check {file}" for file in CHECKED)
    head = "part | fitted on | predicted | full, predicted / measured | Focus | speedup | predicted"
    return (
        f"```bash\nfocus-retrofit plan --model smollm2-135m{files} --fit-to {FIT_TO}K\n```\n\n"
        + table(head, lines)
        + f"\nThe worst of these rows is missed by a factor of {found.worst:.2f}.\n"
    )


SECTIONS: list[tuple[str, str, Callable[[], str]]] = [
    ("README.md", "results", front_page),
    ("kernels/README.md", "kernel results", all_kernels),
    ("docs/results.md", "more results", results_page),
    ("docs/training.md", "sizes", sizes),
    ("docs/positions.md", "positions", positions),
    ("docs/long.md", "long", long_prompts),
    ("docs/planning.md", "check", checked),
]


def main() -> int:
    stale = 0
    for name, section, make in SECTIONS:
        path, begin, end = ROOT / name, f"<!-- {section} -->", f"<!-- end of {section} -->"
        before, _, rest = path.read_text().partition(begin)
        wanted = f"{before}{begin}\n{make()}{end}{rest.partition(end)[2]}"
        stale += wanted != path.read_text()
        if "--check" not in sys.argv:
            write_atomically(path, wanted)
    return stale if "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
