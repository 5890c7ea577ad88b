"""Tables of training: by domain, by recipe, by the size of the model, and what a step costs."""

from __future__ import annotations

import re
from itertools import groupby
from statistics import fmean
from typing import Any

from .markdown import number, results, table, tokens

SPREAD = ", spread"  # ends the names of parts
SPREAD_GROUPS = "K = 8, groups per query spread over the layers, 2 on average"
TRUST = ", trust "  # is in the names of those that stand among `across` alone
SEED = ", seed "  # is in the names of those that were trained once more


def over(row: dict[str, Any], full: dict[str, Any]) -> str:
    return f"{row['perplexity'] / full['perplexity'] - 1:+.1%}"


def _note(name: str, record: dict[str, Any]) -> str:
    """How a table's column came about."""
    groups = record["stages"]["prepare"].get("groups")
    return (
        f"{name}: {record['training']['minutes']:.0f} minutes of training on {_threads(record)}, "
        f"{record['windows']} held-out "
        f"windows, standard error of full attention's perplexity {record['rows'][0]['standard_error']:.2f}, largest "
        f"group {_largest({name: record}):.0%}, change of a past logit by the future {record['leak']:g} "
        f"(`{record['command']}`)"
        + (f"; groups by layer: {_runs(groups)}" if groups else "")
        + (f"; {record['remark']}" if "remark" in record else "")
    )


def _threads(record: dict[str, Any]) -> str:
    """Of records that do not say, two."""
    return "one core" if record.get("threads") == 1 else f"{record.get('threads', 2)} cores"


def _runs(groups: list[int]) -> str:
    """'10 x 1, 8, 2 x 4' of many numbers."""
    found = ((len(list(run)), k) for k, run in groupby(groups))
    return ", ".join(str(k) if count == 1 else f"{count} x {k}" for count, k in found)


def _largest(records: dict[str, Any]) -> float:
    """Share of the largest group in any layer, trained."""
    rows = [row for record in records.values() for row in record["rows"] if row["method"].startswith("trained")]
    return max(row["largest_group"] for row in rows)


def trained() -> str:
    """Every method on every domain's held-out text, groups spread over layers: the front page's table."""
    records = _parts(spread=True)
    minutes = [record["training"]["minutes"] for record in records.values()]
    first = next(iter(records.values()))
    earlier = [name for name, record in records.items() if "--before" in record["command"]]
    even = _parts(spread=False)["reference"]
    rows = {row["method"]: row for row in even["rows"]}
    later = (
        f"k = {k}: {rows[name]['perplexity']:.2f} ({over(rows[name], rows['full attention'])}) at "
        f"{rows[name]['distant']:.0%} of the distant pairs"
        for k, name in ((1, "trained router, k = 1"), (2, "trained router, k = 2"))
    )
    return (
        f"{_title(records, SPREAD_GROUPS)}\n\n{_trained(records)}\n"
        f"Each text has an adapter of its own, trained for {min(minutes):.0f} to {max(minutes):.0f} minutes on one or "
        f"two cores (`{first['command']}`). The one of all texts mixed comes along, with a temperature for each query "
        f"head; {', '.join(earlier)} are of the recipe before. Largest group of any layer {_largest(records):.0%}; "
        f"change of a past logit by the future {max(record['leak'] for record in records.values()):g}. How each was "
        "trained and chosen, standard errors, K = 4, and each adapter on the others' text: "
        f"[docs/results.md](docs/results.md).{_again()}\n\n"
        f"**Four groups in every layer**, on the reference, by the recipe of the mixed one, "
        f"{even['training']['minutes']:.0f} minutes of {_threads(even)}: {'; '.join(later)} (`{even['command']}`).\n"
    )


def _again() -> str:
    """The same with other seeds."""
    found = ""
    for name, record in results("domains").items():
        base, _, seed = name.removesuffix(SPREAD).partition(SEED)
        if seed and name.endswith(SPREAD):
            rows = {_shown(row["method"]): row for row in record["rows"]}
            says = (
                f"{k} {over(rows[f'trained router, {k}'], record['rows'][0])}" for k in ("k = 2 on average", "k = 4")
            )
            found += f" {base.capitalize()} with another seed: {', '.join(says)} (`{record['command']}`)."
    return found


def trained_details() -> str:
    """How these columns came about, and the same with as many groups in every layer."""
    spread, even = _parts(spread=True), _parts(spread=False)
    return (
        f"**After training, groups spread over the layers** (the README's first table).\n\n{_notes(spread)}\n"
        f"{_title(even, 'K = 4')}\n\n{_trained(even)}\n{_notes(even)}"
    )


def _parts(spread: bool) -> dict[str, Any]:
    """Of the file's domains those that are meant, by the names of their texts."""
    parts = {name: record for name, record in results("domains").items() if "rows" in record}
    parts = {name: record for name, record in parts.items() if TRUST not in name and SEED not in name}
    parts = dict(sorted(parts.items(), key=lambda part: not part[0].startswith("mixed")))  # what comes along, first
    return {name.removesuffix(SPREAD): x for name, x in parts.items() if name.endswith(SPREAD) == spread}


def _title(records: dict[str, Any], groups: str) -> str:
    first = next(iter(records.values()))
    return (
        f"**After training**, perplexity of SmolLM2-135M and its change from full attention, {first['windows']} "
        f"held-out windows of {first['tokens']} tokens, {groups}, window 128, {first['parameters']:,} parameters; of "
        "the training text everything is left out that held-out text repeats."
    )


def _trained(records: dict[str, Any]) -> str:
    rows = []
    by_method = [{_shown(row["method"]): row for row in record["rows"]} for record in records.values()]
    for method in dict.fromkeys(method for found in by_method for method in found):
        there = [found[method] for found in by_method if method in found]
        cells = [method, _between([row["distant"] for row in there])]
        for found in by_method:
            value = f"{found[method]['perplexity']:.2f}" if method in found else "-"
            cells.append(
                value
                if value == "-" or method == "full attention"
                else f"{value} ({over(found[method], found['full attention'])})"
            )
        rows.append(cells)
    return table(" | ".join(["attention", "distant pairs", *records]), rows)


def _shown(method: str) -> str:
    """One name for what layers have between them, whichever layers have more."""
    return re.sub(r"k = \d+ to \d+", "k = 2 on average", method)


def _notes(records: dict[str, Any]) -> str:
    return "".join(f"- {_note(name, record)}\n" for name, record in records.items())


def _between(shares: list[float]) -> str:
    """'26%', or '25% to 27%' of several."""
    return " to ".join(dict.fromkeys(f"{share:.0%}" for share in (min(shares), max(shares))))


def across() -> str:
    """Each adapter on each domain."""
    record = results("domains")["across"]
    full = record["full attention"]
    names = list(full)
    rows = [
        [
            name,
            *(
                f"{row[text]['perplexity']:.2f} ({over(row[text], full[text])}, {row[text]['distant']:.0%})"
                for text in names
            ),
        ]
        for name, row in record.items()
    ]
    return (
        "**Each adapter on the others' text** (K = 8, spread; `python scripts/train_domains.py --across`), switched by "
        "name on one base model, with the share of distant pairs: it is larger where groups that were even on an "
        "adapter's own text are not on another; trust: the share of the base's predictions in what a fit takes for "
        "right.\n\n" + table(" | ".join(["adapter", *names]), rows)
    )


def recipes() -> str:
    """What was tried on the way to the default recipe, best first."""
    record = results("recipes")
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in record["rows"]:
        by_name.setdefault(row["recipe"], []).append(row)
    rows = []
    for name, seeds in sorted(by_name.items(), key=lambda item: fmean(row["over"] for row in item[1])):
        minutes, distant, over_full = (fmean(row[part] for row in seeds) for part in ("minutes", "distant", "over"))
        errors = fmean(row["over_error"] for row in seeds)
        each = ", ".join(f"{row['over']:+.1%}" for row in seeds) if len(seeds) > 1 else "-"
        cells = [f"{minutes:.1f}", f"{distant:.0%}", f"{max(row.get('largest_group', 0) for row in seeds):.0%}"]
        rows.append([name, *cells, f"{over_full:+.1%} ± {errors:.1%}", each])
    asked, full = record["asked"], record["full"]["perplexity"]
    threads = max(row["machine"]["threads"] for row in record["rows"])
    head = "recipe | minutes | distant pairs | largest group | loss over full | by seed"
    return (
        "**Recipes**, SmolLM2-135M on the Python reference, hard, K = 4, k = 1 (K = 8: k = 2), perplexity of full "
        f"attention {full:.2f} on {asked['windows']} windows of topics set aside from the training text; fits on "
        f"{asked['fit_windows']} windows, {asked['fit_steps']} steps a round, the trainer for {asked['trainer_steps']} "
        f"steps of one window. {len(by_name)} of {record['planned']} recipes were run, on {threads} thread"
        f"{'s' if threads > 1 else ''}" + (f"; {record['remark']}" if "remark" in record else "") + ". The loss is "
        "paired by window, ± its standard error; compare it at equal pairs "
        f"(`{record['command']}`).\n\n" + table(head, rows)
    )


def cost() -> str:
    """Time and memory of a training step's attention, by length; each row has full attention beside it."""
    record = results("training_cost")
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
