"""The page from its parts: values are escaped by the template, scripts are named by their hash."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from itertools import zip_longest
from typing import Any

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from . import facts, theme, words
from .embed import script_json, visible
from .speed import curves

_SCRIPTS = ("rule.js", "token.js", "strip.js", "top.js", "view.js", "page.js")
_TAIL = 400  # characters of a prompt that are shown
_POLICY = (
    "default-src 'none'; script-src 'sha256-{}'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def report_page(results: dict[str, Any], plots: dict[str, str]) -> str:
    """All of it; a section without data is left out."""
    rows, timed, layers = facts.quality_rows(results), curves(results.get("speed") or []), facts.layers_of(results)
    kept, inspection = facts.kept_layers(layers), results.get("inspection") or {}
    model = (results.get("model") or {}).get("name") or "Focus attention"
    return _render(
        "report.html",
        results,
        title=results.get("title") or model,
        lead=facts.lead(results, rows),
        cards=facts.cards(results, rows, timed),
        rows=rows,
        quality_words=facts.quality_words(rows),
        errors=any(row.get("standard_error") for row in rows),
        curves=timed,
        balance=facts.balance_words(layers, inspection.get("num_groups") or 1) if "balance" in plots else "",
        kept=facts.kept_words(kept) if kept else "",
        generation=[_continuation(x) for x in results.get("generation") or []],
        details=_details(results),
        plots={name: Markup(svgs) for name, svgs in plots.items()},
    )


def inspection_page(inspection: dict[str, Any], title: str) -> str:
    return _render("inspection.html", {"title": str(title), "inspection": inspection}, title=title)


def _render(name: str, results: dict[str, Any], **values: Any) -> str:
    script = '(() => {\n"use strict";\n' + "".join(map(_part, _SCRIPTS)) + "})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        autoescape=True, loader=FunctionLoader(_part), trim_blocks=True, lstrip_blocks=True, finalize=_finalize
    )
    environment.filters |= {x.__name__: x for x in (words.percent, words.count, words.seconds, words.times)}
    environment.filters |= {"change": words.change, "amount": words.number}
    inspection = results.get("inspection") or {}
    return environment.get_template(name).render(
        results=results,
        inspection=inspection if inspection.get("tokens") and inspection.get("layers") else None,
        data=Markup(script_json(results)),
        style=Markup(theme.css() + "\n" + _part("style.css")),
        script=Markup(script),
        policy=_POLICY.format(digest),
        **values,
    )


def _part(name: str) -> str:
    return (files(__package__) / "parts" / name).read_text(encoding="utf-8")


def _finalize(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _continuation(row: dict[str, Any]) -> dict[str, Any]:
    """A prompt's end, and both texts cut where they part."""
    prompt, base, focus = (str(row.get(key) or "") for key in ("prompt", "base", "focus"))
    common = next((at for at, (a, b) in enumerate(zip_longest(base, focus)) if a != b), len(base))
    return {
        "prompt": ("…" if len(prompt) > _TAIL else "") + prompt[-_TAIL:],
        "tokens": row.get("prompt_tokens"),
        "new": row.get("new_tokens"),
        "same": row.get("same"),
        "common": base[:common],
        "texts": [("full attention", base[common:]), ("Focus", focus[common:])],
    }


def _details(results: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Tables of how this was made."""
    made = str(results.get("made") or "").replace("T", " ") or None
    run = {"command": results.get("command"), "made": made, "minutes": results.get("minutes")}
    training = dict(results.get("training") or {})
    stages = training.pop("stages", None) or {}
    training |= {f"{stage}: {key}": value for stage, row in stages.items() for key, value in (row or {}).items()}
    parts = {"run": run, "model": results.get("model"), "config": results.get("config"), "training": training}
    parts |= {"versions": results.get("versions"), "machine": results.get("machine")}
    tables = []
    for name, values in parts.items():
        lines = [(key, words.number(value)) for key, value in (values or {}).items() if value is not None]
        if lines:
            tables.append((name, lines))
    return tables
