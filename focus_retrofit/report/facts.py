"""What the numbers say, in words: the headline, quality, groups; worse is called worse."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from ..config import shown_k
from .speed import Curve
from .words import SPACE, change, count, number, percent, times

Row = dict[str, Any]
SIMILAR = 0.05  # shares of distant pairs this close are one density


def quality_rows(results: Row) -> list[Row]:
    """Methods with a perplexity, each with `over`, its ratio to full attention's."""
    rows = [row for row in (results.get("quality") or {}).get("rows") or [] if row.get("perplexity")]
    full = next((row["perplexity"] for row in rows if row.get("kind") == "full"), None)
    return [{**row, "over": row["perplexity"] / full if full else None} for row in rows]


def headline_row(rows: list[Row]) -> Row | None:
    """The first Focus row: the one that was trained."""
    return next((row for row in rows if row.get("kind") == "focus"), None)


def against(ratio: float | None, other: str = "full attention") -> str:
    """'4.6 % worse than full attention'."""
    if ratio is None:
        return "with no full attention to compare it with"
    percents = 100 * (ratio - 1)
    if abs(percents) < 0.05:
        return f"the same as {other}"
    return f"{abs(percents):.1f}{SPACE}% {'worse' if percents > 0 else 'better'} than {other}"


def lead(results: Row, rows: list[Row]) -> str:
    """The page in one sentence."""
    model = (results.get("model") or {}).get("name") or "a model"
    config = results.get("config") or {}
    setup = [f"K = {config['num_groups']}"] if "num_groups" in config else []
    setup += [f"k = {shown_k(config)}"] if "top_k" in config else []
    text = f"{model} with Focus attention" + (f" ({', '.join(setup)})" if setup else "")
    row = headline_row(rows)
    if row is None:
        return f"{text}: nearby tokens attend fully, distant tokens only within their group."
    pairs = f"computes {percent(row['distant'])} of the distant pairs and " if row.get("distant") is not None else ""
    if row["over"] is None:
        return f"{text} {pairs}predicts held-out text with perplexity {row['perplexity']:.2f}."
    than = against(row["over"], "full attention's")
    return f"{text} {pairs}predicts held-out text at a perplexity {than}."


def quality_words(rows: list[Row]) -> list[str]:
    """Each Focus row against full attention, and against the best baseline that computes about as many pairs."""
    said = []
    for row in rows:
        if row.get("kind") != "focus":
            continue
        text = f"{row['method']}: perplexity {row['perplexity']:.2f}, {against(row['over'])}"
        rivals = [x for x in rows if x.get("kind") == "baseline" and _similar(x, row)]
        if rivals:
            rival = min(rivals, key=lambda x: x["perplexity"])
            ratio = row["perplexity"] / rival["perplexity"]
            pairs = f"at about as many pairs ({percent(rival['distant'])} of the distant)"
            text += f"; {against(ratio, rival['method'])} {pairs}"
            if ratio >= 1:
                text += ": what was learned does not help here"
        said.append(text + ".")
    return said


def _similar(one: Row, other: Row) -> bool:
    a, b = one.get("distant"), other.get("distant")
    return a is not None and b is not None and abs(a - b) <= SIMILAR


def layers_of(results: Row) -> list[Row]:
    return list((results.get("inspection") or {}).get("layers") or [])


def largest_group(layers: list[Row]) -> tuple[float, int, int] | None:
    """(share, layer, group) of the group that dominates most."""
    found = [
        (share, layer["layer"], group) for layer in layers for group, share in enumerate(layer.get("shares") or [])
    ]
    return max(found, default=None)


def balance_words(layers: list[Row], num_groups: int) -> str:
    largest = largest_group(layers)
    if largest is None:
        return ""
    share, layer, group = largest
    even = 1 / max(num_groups, 1)
    verdict = "no group dominates" if share < 2 * even else f"group {group} dominates layer {layer}"
    return (
        f"In the text below, the largest group is group {group} of layer {layer}, with {percent(share)} of the tokens; "
        f"even groups would hold {percent(even)} each: {verdict}."
    )


def kept_layers(layers: list[Row]) -> list[Row]:
    return [layer for layer in layers if layer.get("kept") is not None]


def kept_words(layers: list[Row]) -> str:
    """Against the share of pairs: that is what groups drawn at random would keep."""
    kept = fmean(layer["kept"] for layer in layers)
    text = f"On average the groups keep {percent(kept)} of the attention that full attention gives to distant tokens"
    pairs = [layer["distant"] for layer in layers if layer.get("distant") is not None]
    if len(pairs) == len(layers):
        text += f", with {percent(fmean(pairs))} of the distant pairs, which is what random groups would keep"
        fewer = [layer["layer"] for layer in layers if layer["kept"] < layer["distant"]]
        if fewer:
            text += f"; {len(fewer)} of {len(layers)} layers keep less than that"
    best, worst = (choose(layers, key=lambda layer: layer["kept"]) for choose in (max, min))
    return (
        f"{text}. Most is kept in layer {best['layer']} ({percent(best['kept'])}), "
        f"least in layer {worst['layer']} ({percent(worst['kept'])})."
    )


def cards(results: Row, rows: list[Row], timed: list[Curve]) -> list[dict[str, str]]:
    """The headline numbers: name, value, and what to hold it against."""
    makers = (_perplexity(rows), _pairs(results, rows), _speed(timed), _largest(results, rows), _leak(results))
    return [card for card in (*makers, _training(results)) if card]


def _card(name: str, value: str, note: str, tone: str = "") -> dict[str, str]:
    return {"name": name, "value": value, "note": note, "tone": tone}


def _perplexity(rows: list[Row]) -> dict[str, str] | None:
    row = headline_row(rows)
    if row is None:
        return None
    if row["over"] is None:
        return _card("Perplexity", f"{row['perplexity']:.2f}", str(row["method"]))
    full, worse = row["perplexity"] / row["over"], row["over"] >= 1.0005
    note = f"{change(row['over'])} over full attention's {full:.2f}" + (": worse" if worse else "")
    return _card("Perplexity", f"{row['perplexity']:.2f}", note, "bad" if worse else "good")


def _pairs(results: Row, rows: list[Row]) -> dict[str, str] | None:
    row = headline_row(rows) or {}
    distant, density = row.get("distant"), row.get("density")
    if distant is None:
        found = [x for x in layers_of(results) if x.get("distant") is not None]
        if not found:
            return None
        distant, density = (fmean(x.get(key) or 0.0 for x in found) for key in ("distant", "density"))
    note = "really computed" + (f"; {percent(density)} of all pairs" if density else "")
    return _card("Distant pairs", percent(distant), note)


def _speed(timed: list[Curve]) -> dict[str, str] | None:
    if not timed:
        return None
    curve = max(timed, key=lambda curve: curve.best["speedup"])
    best = curve.best
    note = f"{curve.part}, {count(best['tokens'])} tokens"
    if curve.lost:
        note += f"; {curve.loses.replace('than full attention ', '')}"
    name = "Best speedup" if best["speedup"] >= 1 else "Best speed"
    return _card(name, times(best["speedup"]), note, "good" if best["speedup"] > 1 else "bad")


def _largest(results: Row, rows: list[Row]) -> dict[str, str] | None:
    share = (headline_row(rows) or {}).get("largest_group")
    inspection = results.get("inspection") or {}
    of = "of the held-out tokens"
    if share is None:
        share, of = (largest_group(layers_of(results)) or (None,))[0], "of the text's tokens"
    if share is None:
        return None
    groups = (results.get("config") or {}).get("num_groups") or inspection.get("num_groups")
    return _card("Largest group", percent(share), f"{of}; even is {percent(1 / groups)}" if groups else of)


def _leak(results: Row) -> dict[str, str] | None:
    checks = (results.get("audit") or {}).get("checks") or []
    check = next((x for x in checks if "leak" in str(x.get("name")).lower()), None)
    if check is None:
        return None
    note = "no past prediction changes with the future" if check.get("holds") else "the future changes past predictions"
    return _card(
        "Leak", number(check.get("value")) if check.get("value") else "0", note, "good" if check.get("holds") else "bad"
    )


def _training(results: Row) -> dict[str, str] | None:
    training = results.get("training") or {}
    if training.get("parameters") is None:
        return None
    total = (results.get("model") or {}).get("parameters")
    notes = [f"{percent(training['parameters'] / total, 2)} of the model's"] if total else []
    if training.get("minutes") is not None:
        notes.append(f"trained in {training['minutes']:.1f} minutes")
    return _card("Trained parameters", count(training["parameters"]), ", ".join(notes))
