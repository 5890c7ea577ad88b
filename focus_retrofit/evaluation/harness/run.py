"""Methods of attention on the same items of a benchmark, with the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from focus_kernels import FocusError

from ..methods import Method, title
from .rows import compare, mean_and_error


@dataclass
class Items:
    """A task's items with their requests, ready for any method. `spans[n]` are the requests of item n."""

    task: Any
    docs: list[dict[str, Any]]
    requests: list[tuple[tuple[str, str], list[int], list[int]]]  # texts, tokens of context and continuation
    spans: list[slice]

    def lengths(self) -> list[int]:
        """Tokens that the model sees for each request: all but the last, which is predicted only."""
        return [len(context) + len(continuation) - 1 for _, context, continuation in self.requests]


def run_tasks(
    model: Any,
    tokenizer: Any,
    methods: Sequence[Method],
    tasks: Iterable[str],
    *,
    shots: int = 0,
    limit: int | None = None,
    batch_size: int = 8,
    seed: int = 0,
    done: Iterable[dict[str, Any]] = (),
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """A row per task and method (of `parse_methods`) of a retrofitted model; `compare` says what they hold besides.

    shots: solved examples before each item, drawn by `seed`, the same for every method. limit: items, spread evenly
    over the task's. done: rows of a run that was stopped, which are kept; `on_row` is given each new one.
    """
    from .model import FocusLM

    lm = FocusLM(model, tokenizer=tokenizer, batch_size=batch_size)
    kept = list(done)
    rows: list[dict[str, Any]] = []
    for task in tasks:
        items = read_items(lm, task, shots, limit, seed)
        of_task: list[dict[str, Any]] = []
        for method in methods:
            name = title(model, method)
            asked = {"method": name, "task": task, "shots": shots, "limit": limit, "seed": seed}
            row = next((row for row in kept if asked.items() <= row.items()), None)
            new = row is None
            if row is None:
                lm.method = method
                row = {**asked, "kind": method.kind, **answers(lm, items)}
            of_task.append(row)
            compare(of_task)
            if new:
                on_row(row)
        rows += of_task
    return rows


def read_items(lm: Any, name: str, shots: int, limit: int | None, seed: int) -> Items:
    """The items of a task and what is asked of the model for them."""
    task = load_task(name)
    if shots and task.get_config("num_fewshot") == 0:
        raise FocusError(f"{name} brings its own examples and takes no others: use shots=0 for it")
    task.set_config(key="num_fewshot", value=shots)
    task.set_fewshot_seed(seed)
    total = len(task.eval_docs)
    count = min(limit or total, total)
    chosen = [n * total // count for n in range(count)]
    task.build_all_requests(samples=chosen)
    by_item: dict[int, list[Any]] = {}
    for instance in task.instances:
        if instance.request_type != "loglikelihood":
            raise FocusError(f"{name} asks for {instance.request_type}: use lm_eval itself for it")
        by_item.setdefault(instance.doc_id, []).append(instance)
    requests: list[Any] = []
    docs, spans = [], []
    for instances in by_item.values():
        spans.append(slice(len(requests), len(requests) + len(instances)))
        requests += [(instance.args, *encode(lm, *instance.args)) for instance in instances]
        docs.append(instances[0].doc)
    items = Items(task, docs, requests, spans)
    longest = max(items.lengths())
    if longest > lm.max_length:
        raise FocusError(
            f"{name} with {shots} shots has a prompt of {longest} tokens, the model takes {lm.max_length}: use fewer"
        )
    return items


def load_task(name: str) -> Any:
    """A task of this package, or one of lm_eval's where a hub can be reached."""
    from lm_eval.tasks import TaskManager

    from . import TASKS

    ours = sorted(path.stem for path in TASKS.glob("focus_*.yaml"))
    manager = TaskManager(include_path=str(TASKS), include_defaults=not name.startswith("focus_"))
    if name not in manager.all_subtasks:
        raise FocusError(f"no task {name!r}; without a hub there are {', '.join(ours)}")
    return manager.load([name])["tasks"][name]


def encode(lm: Any, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Tokens of a request, as lm_eval makes them."""
    if context:
        return lm._encode_pair(context, continuation)
    tokens = lm.tok_encode(continuation, add_special_tokens=False)
    return ([lm.prefix_token_id], tokens) if tokens[0] != lm.prefix_token_id else (tokens[:1], tokens[1:])


def answers(lm: Any, items: Items) -> dict[str, Any]:
    """What the model, attending as it is set to, makes of the items."""
    task, lengths = items.task, items.lengths()
    found = lm._loglikelihood_tokens(items.requests)
    results = [found[span] for span in items.spans]
    metrics = [task.process_results(doc, result) for doc, result in zip(items.docs, results, strict=True)]
    metric = next((name for name in ("acc_norm", "acc") if name in metrics[0]), None)
    if metric is None:
        raise FocusError(f"{task.config.task} has no accuracy, only {', '.join(metrics[0])}: use lm_eval itself for it")
    values = [float(x[metric]) for x in metrics]
    value, error = mean_and_error(values)
    tokens = [max(lengths[span]) for span in items.spans]
    window = lm.model.focus.config.window
    beyond = [x for x, length in zip(values, tokens, strict=True) if length > window + 1]
    return {
        "items": len(values),
        "metric": metric,
        "value": value,
        "standard_error": error,
        "metrics": {name: float(task.aggregation()[name]([x[name] for x in metrics])) for name in metrics[0]},
        "tokens_mean": sum(lengths) / len(lengths),
        "tokens_max": max(lengths),
        "window": window,
        "beyond": len(beyond),
        "beyond_value": mean_and_error(beyond)[0],
        "values": values,
        "choices": [choice(task, metric, x, y) for x, y in zip(items.docs, results, strict=True)],
        "scores": [[score for score, _ in result] for result in results],
        "tokens": tokens,
    }


def choice(task: Any, metric: str, doc: dict[str, Any], result: list[tuple[float, bool]]) -> int:
    """Which answer was chosen; where there is only one, whether it would have been given."""
    if len(result) == 1:
        return int(result[0][1])
    lengths = [len(x) if metric == "acc_norm" else 1 for x in task.doc_to_choice(doc)]
    return max(range(len(result)), key=lambda n: result[n][0] / lengths[n])
