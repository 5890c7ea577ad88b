"""Tables of whole models' speed, and of what the cost model makes of them."""

from __future__ import annotations

from typing import Any

from .markdown import ROOT, number, results, table, tokens

HEAD = "part | model | tokens | full attention | Focus | speedup | bound | pairs | attention | memory"
NOTE = (
    "*Full attention* is the fastest form found there; *bound* what the share of pairs computed allows, the rest of "
    "the model included; *attention* its share of the time with full attention: where it is small, so is the gain; "
    "*memory* peak over that of full attention in the same chunks, weights apart (decode: the caches). A prefill's "
    "time is the time to the first token. \\* is beyond the model's positions: the speed is real, the text is not. "
    "*Sampled*: of one layer some blocks of queries against all their keys, scaled.\n"
)
CHECKED = [*(f"kernels/results/{name}.json" for name in ("k8-k1", "long", "decode")), "results/long-prefill.json"]
FIT_TO = 16


def of_part(row: dict[str, Any], name: str) -> str:
    seconds = row[name]
    if row["part"] == "decode":
        return f"{1 / seconds:.1f} tokens/s"
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def rows_of(file: str) -> list[list[str]]:
    """Of a whole model, from a file of `focus-retrofit bench`."""
    found = results(file)["rows"]
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


def files() -> list[str]:
    return sorted(path.stem for path in (ROOT / "results").glob("long-*.json"))


def every() -> str:
    """Every file of whole-model speed, with its command."""
    parts = []
    for file in files():
        record = results(file)
        setups = "; ".join(sorted({row["setup"] for row in record["rows"]}))
        m = record["machine"]
        where = f"{m['processor']}, {m['threads']} threads, {m['instructions']}"
        parts.append(f"**{setups}** ({where}; `{record['command']}`)\n\n" + table(HEAD, rows_of(file)))
    return "\n".join([*parts, NOTE])


def headlines() -> str:
    rows = [row for file in files() if "auto" not in file for row in rows_of(file)]
    return (
        "**Whole model**, SmolLM2-135M (the longest prompt: its first layer), k = 1, window 128, two cores; commands, "
        "other lengths and what the columns are: [docs/long.md](docs/long.md#how-fast-how-large).\n\n"
        + table(HEAD, rows)
    )


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
