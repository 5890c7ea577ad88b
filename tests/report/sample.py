"""Results as a run would write them: real text, groups by word so that they look like something."""

from __future__ import annotations

import re
from collections import Counter
from pydoc_data.topics import topics
from typing import Any

import numpy as np

HOSTILE = (
    '</script><img src=x onerror="window.hostile=1"><script>window.hostile=1</script>'
    "'\"&amp;\u2028\u2029\x00${1}{{ 7*7 }}$\\frac"
)


def tokens(count: int) -> list[str]:
    """About what a tokenizer makes of the Python reference."""
    text = "\n\n".join(topics[name] for name in ("class", "assignment", "lambda", "with", "try", "for", "import"))
    return (re.findall(r" ?[A-Za-z]{1,9}|\n+ *| ?[^\sA-Za-z]{1,2}| +", text) * 9)[:count]


def sees(groups: list[list[int]], i: int, j: int, match: str, window: int, sinks: int) -> bool:
    """The rule of visibility."""
    shared = bool(set(groups[i]) & set(groups[j])) if match == "share" else groups[j][0] in groups[i]
    return j <= i and (i - j <= window or j < sinks or shared)


def layer(number: int, words: list[str], num_groups: int, top_k: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    taste = {word: random.gumbel(size=num_groups) * (1 + number % 5) for word in sorted(set(words))}
    scores = np.stack([taste[word] for word in words]) + random.gumbel(size=(len(words), num_groups))
    for _ in range(6):  # nearly even, as potentials make them
        scores -= 2.5 * (np.bincount(scores.argmax(1), minlength=num_groups) / len(words) - 1 / num_groups)
    groups = np.argsort(-scores, axis=1)[:, :top_k]
    whole, inside = Counter(words), [Counter() for _ in range(num_groups)]  # type: ignore[var-annotated]
    for word, group in zip(words, groups[:, 0].tolist(), strict=True):
        inside[group][word] += 1
    top = []
    for counter in inside:
        best = sorted(counter, key=lambda word: (-counter[word] * counter[word] / whole[word], word))[:8]
        top.append([{"token": w, "count": counter[w], "share": counter[w] / whole[w]} for w in best])
    shares = np.bincount(groups[:, 0], minlength=num_groups) / len(words)
    return {
        "layer": number,
        "groups": groups.tolist(),
        "shares": shares.tolist(),
        "density": 0.44,
        "distant": float(0.26 + random.normal() * 0.01),
        "confidence": float(0.6 + 0.3 * random.random()),
        "temperature": float(1 + random.normal() * 0.02),
        "kept": float(0.4 + 0.4 * random.random()),
        "top": top,
    }


def inspection(
    count: int = 1024, layers: int = 30, num_groups: int = 4, top_k: int = 1, match: str = "probe"
) -> dict[str, Any]:
    words = tokens(count)
    return {
        "tokens": words,
        "num_groups": num_groups,
        "top_k": top_k,
        "match": match,
        "window": 128,
        "sinks": 4,
        "layers": [layer(number, words, num_groups, top_k) for number in range(layers)],
    }


def speed() -> list[dict[str, Any]]:
    rows = []
    for part, setup, values in (
        ("kernel", "one layer, 9/3 heads of 64, K = 4, k = 1", (0.47, 0.82, 1.34, 1.96, 2.71, 3.15)),
        ("prefill", "30 layers, K = 4, k = 1", (0.81, 0.93, 1.12, 1.38, 1.61)),
        ("decode", "30 layers, K = 4, k = 1, per token", (1.24, 1.9, 2.57, 3.0, 3.4)),
    ):
        for place, speedup in enumerate(values):
            tokens, density = 1024 * 2**place, 0.25 + 0.2 / 2**place
            full = {"kernel": 2e-3, "prefill": 0.8, "decode": 4e-4}[part] * (4.0 if part != "decode" else 2.0) ** place
            rows.append({
                "part": part, "setup": setup, "tokens": tokens, "full_seconds": full, "focus_seconds": full / speedup,
                "speedup": speedup, "density": density, "bound": 1 / density, "memory": 1.1 + 0.2 / (1 + place),
            })  # fmt: skip
    return rows


def quality() -> dict[str, Any]:
    rows = [
        ("full attention", "full", 8.95, 1.03, 1.0, 1.0, None, 1.0),
        ("window and sinks only", "baseline", 10.74, 1.29, 0.24, 0.01, None, 1.04),
        ("random groups", "baseline", 10.00, 1.17, 0.44, 0.26, 0.26, 0.86),
        ("strided groups", "baseline", 9.97, 1.16, 0.44, 0.26, 0.25, 0.87),
        ("random groups, k = 2", "baseline", 9.56, 1.11, 0.62, 0.50, 0.26, 0.8),
        ("Focus, k = 1", "focus", 9.36, 1.09, 0.44, 0.26, 0.33, 0.88),
        ("Focus, k = 2", "focus", 9.17, 1.06, 0.63, 0.51, 0.33, 0.81),
    ]
    keys = ("method", "kind", "perplexity", "standard_error", "density", "distant", "largest_group", "speed")
    return {
        "text": "held-out topics of the reference",
        "tokens": 1024,
        "windows": 6,
        "rows": [{k: v for k, v in zip(keys, row, strict=True) if v is not None} for row in rows],
    }


def audit() -> dict[str, Any]:
    checks = [
        ("no leak from the future", True, 0.0, 0.0, "largest change of a past logit when later tokens change"),
        ("short text equals the base model", True, 3.8e-6, 1e-4, "largest difference of a logit within the window"),
        ("the base model is untouched", True, 0.0, 0.0, "largest difference of a logit with the adapter disabled"),
        ("cache equals one call", True, 1.9e-5, 1e-4, "token by token against the whole sequence"),
        ("equals the base at k = K", None, None, None, "temperature is 0.9, not 1"),
    ]
    keys = ("name", "holds", "value", "limit", "detail")
    return {"holds": True, "checks": [dict(zip(keys, check, strict=True)) for check in checks]}


def minimal() -> dict[str, Any]:
    """What a run that was stopped early leaves."""
    model = {"name": "smollm2-135m", "type": "llama", "parameters": 134515008, "layers": 30, "heads": 9, "key_heads": 3}
    return {"model": model, "config": {"num_groups": 4, "top_k": 1, "match": "probe", "window": 128, "sinks": 4}}


def results(**sizes: Any) -> dict[str, Any]:
    """All of it; the sizes are those of `inspection`."""
    shared = "The `with` statement is used to wrap the execution of a block with methods"
    stages = {"prepare": {"minutes": 4.0, "lost": 0.61}, "train": {"minutes": 2.1, "steps": 20, "train_loss": 2.2}}
    return minimal() | {
        "title": "SmolLM2-135M on the Python reference",
        "command": "focus-retrofit quickstart",
        "made": "2026-11-16T15:00:00+00:00",
        "minutes": 9.8,
        "training": {"text": "the Python language reference", "windows": 48, "tokens": 1024, "minutes": 6.1,
                     "parameters": 278430, "stages": stages},
        "quality": quality(),
        "audit": audit(),
        "speed": speed(),
        "generation": [
            {"prompt": topics["with"][:1500], "prompt_tokens": 1500, "new_tokens": 40, "same": 15,
             "base": f"{shared} defined by a context manager. This allows patterns to be reused.\n\n   with_stmt",
             "focus": f"{shared} that are called on entry and exit. This allows common patterns to be reused."},
            {"prompt": topics["lambda"], "prompt_tokens": 212, "new_tokens": 12, "same": None,
             "base": "Lambda expressions have the same position as expressions.",
             "focus": "Lambda expressions have the same position as expressions."},
        ],
        "inspection": inspection(**sizes),
        "versions": {"focus_retrofit": "0.1.0", "torch": "2.13.0", "transformers": "5.22.0", "python": "3.11.7"},
        "machine": {"processor": "a processor with two cores", "cores": 2, "memory_gb": 24, "threads": 2},
    }  # fmt: skip


def hostile() -> dict[str, Any]:
    """Every string that could come from outside is an attack."""
    data = results(count=200, layers=2)
    data["title"] = data["command"] = HOSTILE
    data["model"]["name"] = data["config"][HOSTILE] = data["versions"][HOSTILE] = data["machine"]["processor"] = HOSTILE
    data["quality"]["text"] = data["training"]["text"] = HOSTILE
    for number, row in enumerate(data["quality"]["rows"]):
        row["method"] = f"{number} {HOSTILE}"
    for row in data["speed"]:
        row["part"] = row["part"] + HOSTILE
        row["setup"] = HOSTILE
    for row in data["generation"]:
        row["prompt"] = row["base"] = row["focus"] = HOSTILE
    for check in data["audit"]["checks"]:
        check["detail"] = check["name"] = HOSTILE
    view = data["inspection"]
    view["tokens"][:6] = [HOSTILE, "\ud800", "", "\u202eabc", "\t\r\x1b[0m", "<b>bold</b>"]
    for row in view["layers"]:
        row["top"][0][0]["token"] = HOSTILE
    return data
