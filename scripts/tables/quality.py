"""Tables of quality: before training, against rivals, on benchmarks, far back, by position."""

from __future__ import annotations

import io
import json
from typing import Any

from focus_retrofit.config import shown_k

from .markdown import ROOT, measured, number, results, table, tokens


def untrained() -> str:
    record = results("untrained_router")
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


def against_rivals() -> dict[str, Any]:
    """The comparison's record, with some rows from a later run, those of Focus with the adapter that comes along now,
    on the same windows, which full attention's losses show."""
    record, own = results("compare"), results("compare-focus")
    for title, part in record["perplexity"].items():
        before, now = part["rows"], own["perplexity"][title]["rows"]
        if any(abs(a - b) > 1e-3 for a, b in zip(before[0]["losses"], now[0]["losses"], strict=True)):
            raise SystemExit(f"results/compare.json and results/compare-focus.json differ in {title}: run both again")
        part["rows"] = _of_now(before, now)
    return {**record, "table": _of_now(record["table"], own["table"]), "own": own}


def _of_now(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What `now` holds in place of what it was before; rivals keep their names, which say the same share of pairs."""
    again = {_without_budget(row): row for row in now if row["kind"] == "baseline"}
    rest = [row for row in before[1:] if row["kind"] != "focus"]
    rest = [{**again.get(_without_budget(row), row), "method": row["method"]} for row in rest]
    return [before[0], *(row for row in now if row["kind"] == "focus"), *rest]


def _without_budget(row: dict[str, Any]) -> str:
    return str(row["method"]).partition(",")[0]


def comparison() -> str:
    """Focus beside its rivals."""
    record = against_rivals()
    asked, config = record["asked"], record["own"]["config"]
    shipped = results("domains")["mixed, spread"]["training"]
    return (
        f"**Against rivals**, SmolLM2-135M, {asked['windows']} windows of each text, Focus with K = "
        f"{config['num_groups']}, window {config['window']}, the others with as many pairs; perplexity "
        "with the paired change over full attention. Rivals that learn did so on the text of the first column, "
        f"{asked['train_windows']} windows, weights for {asked['steps']} steps; the shipped adapter of Focus had "
        f"{shipped['fit_windows'] + shipped['spread_windows']} windows and {shipped['steps']} steps of the mixture, in "
        "which both texts have a part; its recipe was chosen in part on held-out windows of the first, which flatters "
        "it there. Speed is that of whole passes over these windows, in turn; a method that is only a mask has none. "
        "*Choosing* is what the choice of keys costs beside the pairs, as a share of full attention. "
        f"[What they are](evaluation.md#methods); `{record['command']}` for the rivals, `{record['own']['command']}` "
        "for Focus and Longformer on the same windows, each speed over full attention's of its own run.\n\n"
        + _methods(record)
        + "\n![perplexity by pairs and by speed](images/compare.png)\n"
    )


def _methods(record: dict[str, Any]) -> str:
    """A row for each method of a comparison."""
    titles = list(record["perplexity"])
    head = ["method", "distant pairs", "all pairs", "choosing", "speed", "learned", *titles]
    return table(" | ".join(head), [_method(row, titles) for row in record["table"]])


def _method(row: dict[str, Any], titles: list[str]) -> list[str]:
    return [
        row["method"],
        *(f"{row[x]:.0%}" for x in ("distant", "density")),
        f"{row['choosing']:.1%}" if row["choosing"] else "-",
        "-" if row["engine"] == "dense mask" else f"{row['speed']:.2f}",
        f"{row['parameters']:,}" if row["parameters"] else "-",
        *(row[title] for title in titles),
    ]


LONGER = ("compare-long", "compare-long-256", "compare-long-512")  # files: the same windows of text


def longer_records() -> list[dict[str, Any]]:
    """With the window of Focus and rivals that the first has, and with wider ones."""
    first, *others = (results(name) for name in LONGER if measured(name))
    for title, part in first["perplexity"].items():
        full = [part["rows"][0]["losses"], *(other["perplexity"][title]["rows"][0]["losses"] for other in others)]
        if any(abs(a - b) > 1e-3 for losses in full[1:] for a, b in zip(full[0], losses, strict=True)):
            raise SystemExit(f"{', '.join(LONGER)} differ in {title}: run them again")
    return [first, *others]


def longer_comparison() -> str:
    """Longer texts, where fewer pairs are less time; by the window that all methods share."""
    first, *others = longer_records()
    titles = list(first["perplexity"])
    rows = [["-", *_method(first["table"][0], titles)]]
    for record in (first, *others):
        window = str(record["config"]["window"])
        rows += [[window, *_method(row, titles)] for row in record["table"][1:]]
    machine = first["machine"]
    commands = "; ".join(f"`{record['command']}`" for record in (first, *others))
    return (
        f"**Against rivals on longer windows of text**, {first['asked']['windows']} of each, with the shipped adapter, "
        "trained on 1024 tokens with a window of 128. A wider one may be chosen afterwards; distant pairs are "
        f"then those beyond it. {machine['processor']}, {machine['threads']} thread"
        f"{'s' if machine['threads'] > 1 else ''}, beside another process. {commands}.\n\n"
        + table(
            " | ".join(["window", "method", "distant pairs", "all pairs", "choosing", "speed", "learned", *titles]),
            rows,
        )
        + "\n![perplexity of longer windows by pairs and by speed](images/compare-long.png)\n"
    )


def longer_picture() -> bytes:
    """Rivals with the first window, Focus with all."""
    first, *others = longer_records()
    title = next(iter(first["perplexity"]))
    rows = list(first["perplexity"][title]["rows"])
    for record in others:
        focus = [row for row in record["perplexity"][title]["rows"] if row["kind"] == "focus"]
        wider = f", w = {record['config']['window']}"
        rows += [{**row, "method": row["method"].replace("Focus, ", "Focus ") + wider} for row in focus]
    return pareto(rows)


def benchmarks() -> str:
    """Base and Focus on the same items, a file for each number of examples."""
    records = [json.loads(path.read_text()) for path in sorted((ROOT / "results").glob("benchmarks-*.json"))]
    records = [record for record in records if "checked_within_the_window" in record]  # the last that a run writes
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


def pareto(rows: list[dict[str, Any]]) -> bytes:
    """Every method by pairs and by speed."""
    from focus_retrofit.report.plot_quality import draw

    drawn = io.BytesIO()
    draw(rows, narrow=False, many=True).savefig(drawn, format="png", dpi=150)
    return drawn.getvalue()


def rivals_picture() -> bytes:
    """On the first text."""
    return pareto(next(iter(against_rivals()["perplexity"].values()))["rows"])


FAR = ("retrieval", "retrieval-long", "retrieval-copying")  # files


def far_cells() -> list[dict[str, Any]]:
    """Of all files; their items differ, as their tasks or lengths do."""
    return [cell for name in FAR if measured(name) for cell in results(name)["cells"].values()]


def retrieval() -> str:
    """What is found far back, by length."""
    from focus_retrofit.evaluation.retrieval.summary import summarise

    cells = far_cells()
    lengths = sorted({cell["length"] for cell in cells})
    rows = []
    for row in sorted(summarise(cells), key=lambda row: [cell["task"] for cell in cells].index(row["task"])):
        own = [cell for cell in cells if (cell["task"], cell["method"]) == (row["task"], row["method"])]
        by_length = [[x for cell in own if cell["length"] == length for x in cell["scores"]] for length in lengths]
        score = [f"{sum(x):.2g} of {len(x)}" if x else "-" for x in by_length]
        low, high = row["interval"]
        over = row["over_full"]
        change = "-" if over is None else f"{over['nll']:+.2f} ± {over['nll_error']:.2f}"
        whole = f"{sum(map(sum, by_length)) / row['items']:.0%} ({low:.0%} to {high:.0%})"
        rows.append([row["task"], row["method"], f"{row['density']:.0%}", *score, whole, f"{row['nll']:.2f}", change])
    said = "; ".join(f"`{results(name)['command']}`" for name in FAR if measured(name))
    return (
        "**Far back**, SmolLM2-135M with the shipped adapter, the same items for all, evenly over depths; how many "
        "are right by length (of `copy` the sum of each item's share of tokens), all of them with a 95 % interval, "
        "negative log-likelihood of the answer with the paired change. *Pairs* is the mean over lengths of what was "
        f"computed. [What is asked](evaluation-long.md). {said}.\n\n"
        + table(f"task | attention | pairs | {' | '.join(map(tokens, lengths))} | all | nll | over full", rows)
        + "\n![passkeys found, by depth and length](images/passkey.png)\n"
        + "\n![needles found, by depth and length](images/needle.png)\n"
    )


def heat_map(task: str) -> bytes:
    """What is found by depth and length, of all files."""
    from focus_retrofit.report.plot_retrieval import draw_retrieval

    return draw_retrieval(far_cells(), task)


def positions() -> str:
    """Perplexity by range of positions, scaling and attention; what Focus costs is paired."""
    record = results("positions")
    titles = {"full": "full", "focus": f"Focus, K = {record['config']['num_groups']}, k = {shown_k(record['config'])}"}
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
        + "\n![perplexity by position](images/positions.png)\n"
    )
