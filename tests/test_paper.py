"""The papers' studies: every one runs at a tiny size, resumes, and is put on a page that hides nothing."""

from __future__ import annotations

import json
import math
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from focus_kernels import FocusError

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "paper"))

labels, page, small, study, summary = map(import_module, ("labels", "page", "small", "study", "summary"))
EXTRA = {
    "domains": ["--domains", "source,reference"],
    "transfer": ["--lengths", "96,192"],
    "retrofit": ["--methods", "full,window,wide,longformer,routing,random,untrained:2,focus,soft,finetune"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("paper")


def run(name, place, *words):
    output = place / f"{name}.json"
    options = ["--model", "tiny", "--runs", str(place / "runs"), "--output", str(output)]
    import_module(name).STUDY.main([*options, *EXTRA.get(name, []), *words])
    return json.loads(output.read_text())


@pytest.fixture(scope="module", autouse=True)
def fewer_values():
    """Of long lists of settings, those that the papers' claims are about."""
    ablation, lora, temperature = map(import_module, ("ablation", "lora", "temperature"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation, "VALUES", {name: (x[0], x[-1]) for name, x in ablation.VALUES.items()})
        patch.setattr(lora, "BUDGETS", {"equal": lora.BUDGETS["equal"]})
        patch.setattr(temperature, "RETROFIT", (None,))
        patch.setattr(temperature, "SCRATCH", (None, 0.4, "learned"))
        yield


@pytest.fixture(scope="module", params=page.STUDIES)
def record(request, place):
    if request.param in ("lora", "domains"):
        pytest.importorskip("peft", reason="pip install peft")
    return run(request.param, place)


def test_every_cell_says_how_it_was_had(record):
    found = import_module(record["study"]).STUDY
    bench = study.Bench(found.parse(["--model", "tiny", *EXTRA.get(found.name, [])]))
    bench.loaded = small.new_model(small.RECIPES["tiny"], 0), None
    assert len(record["cells"]) == len(found.cells(bench)) > 2
    for cell in record["cells"].values():
        assert cell["command"].startswith(f"python scripts/paper/{found.name}.py --model tiny")
        assert 0 < cell["density"] <= 1
        assert cell["seed"] == cell["settings"]["seed"]
    assert record["overlap"] == 0
    assert {"torch", "transformers"} <= set(record["versions"]) and record["machine"]
    assert record["model"]["name"] == "tiny"


def test_every_claim_is_of_cells_that_there_are(record):
    """A claim of a setting that no run has would be passed over in silence."""
    found = import_module(record["study"]).STUDY
    known = [summary.settings_of(cell) for cell in record["cells"].values()]
    if found.name == "transfer":  # its claims are of the real model's lengths
        known = [{**settings, "length": length} for settings in known for length in (1024, 2048, 4096, 8192)]
    if found.name == "domains":  # its claims are of texts in packages
        names = {"source": "legal", "reference": "medical"}
        known = [{**settings, "domain": names[settings["domain"]]} for settings in known]
        general = import_module("domains").GENERAL  # where an adapter is given
        known += [{"domain": name, "method": method} for name in names.values() for method in general]
    sides = [side for claim in found.claims for side in (claim.a, claim.b)]
    if found.name == "group_dim":  # the tiny model has no more dimensions
        sides = [side for side in sides if side["group_dim"] != 32]
    if found.name == "retrofit":
        sides = [side for side in sides if side["method"] not in ("focus:2", "strided")]
    assert sides and all(side in known for side in sides)


def test_a_study_goes_on_where_it_stopped(place, monkeypatch):
    """Cells that are there are not measured again; more seeds are added; other options are refused."""
    name = "group_dim"
    before = run(name, place)
    module = import_module(name)
    measured = []

    def count(bench, settings):
        measured.append(settings)
        return module.measure(bench, settings)

    monkeypatch.setattr(module, "STUDY", study.replace(module.STUDY, measure=count))
    assert run(name, place)["cells"] == before["cells"] and not measured
    after = run(name, place, "--seeds", "2")
    assert measured and all(settings["seed"] == 1 for settings in measured)
    assert before["cells"].items() <= after["cells"].items()
    with pytest.raises(SystemExit, match="another run"):
        run(name, place, "--windows", "3")


def test_routers_are_trained_and_the_model_stays(place):
    bench = study.Bench(import_module("retrofit").STUDY.parse(["--model", "tiny", "--runs", str(place / "runs")]))
    before = {name: x.clone() for name, x in bench.model.state_dict().items()}
    with bench.untrained(0) as model:
        drawn = model.focus.router(0).centroids.detach().clone()
    with bench.trained(0) as model:
        assert not torch.equal(model.focus.router(0).centroids, drawn)
    with bench.trained(0, {"frozen": False, "finetune_lr": 1e-2}) as model:
        assert model is not bench.model
        changed = {
            name for name, x in model.state_dict().items() if name in before and not torch.equal(x, before[name])
        }
        assert changed
    assert not hasattr(bench.model, "focus")
    assert all(torch.equal(x, before[name]) for name, x in bench.model.state_dict().items())


def test_one_group_is_full_attention(place):
    """What 'from scratch' compares with."""
    bench = study.Bench(import_module("scratch").STUDY.parse(["--model", "tiny", "--runs", str(place / "runs")]))
    with bench.untrained(0, num_groups=1) as model:
        found = bench.measure(model)
    assert found["density"] == 1
    assert found["losses"] == pytest.approx(bench.full()["losses"], rel=1e-5)


def test_benchmarks_are_of_what_was_trained(place, monkeypatch):
    """The hook is called with the weights of the cell: the base's for centroids, changed ones for LoRA."""
    pytest.importorskip("peft", reason="pip install peft")
    lora = import_module("lora")
    words = ["--model", "tiny", "--runs", str(place / "runs"), "--benchmarks", "truthfulqa_mc1", "--limit", "3"]
    bench = study.Bench(lora.STUDY.parse(words))
    ids, seen = bench.held()[0][None, :8], []  # within the window: routing changes nothing here

    def run_tasks(model, tokenizer, methods, tasks, limit):
        with torch.inference_mode():
            seen.append(model(ids).logits)
        row = {"value": 2 / 3, "standard_error": 0.1, "items": limit, "metric": "acc", "values": [1.0, 1.0, 0.0]}
        return [{"task": f"focus_{task}", **row} for task in tasks]

    monkeypatch.setitem(sys.modules, "focus_retrofit.evaluation.harness", SimpleNamespace(run_tasks=run_tasks))
    focus = lora.measure(bench, {"method": "focus", "seed": 0})
    lora.measure(bench, {"budget": "equal", "rate": 2e-3, "seed": 0})
    with torch.inference_mode():
        base = bench.model(ids).logits
    rounded = {"value": 2 / 3, "standard_error": 0.1, "items": 3, "metric": "acc"}
    assert focus["benchmarks"] == {"focus_truthfulqa_mc1": rounded}
    assert summary.samples(focus, "truthfulqa_mc1") == [1.0, 1.0, 0.0]
    torch.testing.assert_close(seen[0], base)
    assert (seen[1] - base).abs().max() > 1e-4


def cell(losses, seed=None, **settings):
    return {"settings": {"seed": seed, **settings}, "seed": seed, "losses": losses, "density": 1.0}


def test_differences_are_paired_by_window():
    a, b = [cell([1.1, 2.2, 3.0])], [cell([1.0, 2.0, 3.1])]
    found = summary.difference(a, b)
    wanted = torch.tensor([0.1, 0.2, -0.1])
    assert found.mean == pytest.approx(wanted.mean().item())
    assert found.half == pytest.approx(4.302653 * wanted.std().item() / 3**0.5)


def test_an_interval_is_the_wider_of_windows_and_seeds():
    """Windows agree, seeds do not: without the seeds this would look certain."""
    a = [cell([1.0, 2.0], seed=0), cell([1.4, 2.4], seed=1)]
    found = summary.difference(a, [cell([1.0, 2.0])])
    assert found.mean == pytest.approx(0.2)
    assert found.half == pytest.approx(12.7062 * (0.08**0.5) / 2**0.5, rel=1e-4)


@pytest.mark.parametrize(
    "mean, half, expect, word",
    [
        (-1.0, 0.5, "less", "agrees"),
        (1.0, 0.5, "less", "disagrees"),
        (1.0, 0.5, "more", "agrees"),
        (-1.0, 0.5, "more", "disagrees"),
        (-1.0, 2.0, "less", "undecided"),
        (0.01, 0.02, "same", "agrees"),
        (0.01, 0.2, "same", "undecided"),
        (1.0, 0.5, "same", "disagrees"),
        (1.0, None, "less", "disagrees"),
        (1.0, None, "same", "undecided"),
    ],
)
def test_verdicts(mean, half, expect, word):
    assert summary.Difference(mean, half).verdict(expect).split()[0] == word


def test_a_difference_may_be_too_small_to_be_meant():
    """A largest group of 15% in place of 14% is no collapse."""
    assert summary.Difference(0.01, None).verdict("more", 0.1).startswith("disagrees")
    assert summary.Difference(0.8, None).verdict("more", 0.1) == "agrees (one sample)"


def test_a_summary_has_all_seeds():
    cells = [cell([2.0, 2.0], method="full"), cell([2.1, 2.1], 0, method="focus"), cell([2.3, 2.3], 1, method="focus")]
    full, focus = summary.summarise(cells, lambda settings: {"method": "full"})
    assert focus["seeds"] == [0, 1] and focus["perplexity"] == pytest.approx(math.exp(2.2))
    assert focus["over"] == pytest.approx(math.exp(0.2) - 1) and "over" not in full
    assert focus["interval_over_windows"] == pytest.approx([math.exp(2.2)] * 2)
    assert focus["interval_over_seeds"][1] > math.exp(2.3)


def made_record(better):
    """A file of the retrofit's study in which Focus is better than full attention, or worse."""
    cells = [cell([2.0, 2.1, 2.2], method="full")]
    cells += [cell([x + (-0.1 if better else 0.1) for x in (2.0, 2.1, 2.21)], 0, method="focus")]
    return {
        "asked": {"text": "source", "windows": 3, "length": 96, "window": 8},
        "model": {"name": "tiny", "parameters": 40_000, "layers": 2},
        "command": "python scripts/paper/retrofit.py",
        "planned": 11,
        "cells": {str(n): x for n, x in enumerate(cells)},
        "summary": summary.summarise(cells, lambda settings: {"method": "full"}),
    }


def test_budgets_can_be_chosen():
    lora = import_module("lora")
    bench = study.Bench(lora.STUDY.parse(["--model", "tiny", "--budgets", "equal"]))
    assert {settings.get("budget") for settings in lora.cells(bench)} == {None, "equal"}
    bench.options.budgets = "double"
    with pytest.raises(FocusError, match=r"no budget 'double'; there are: .*equal"):
        lora.cells(bench)


def test_a_claim_of_what_was_not_measured_is_left_out():
    claim = summary.Claim("it keeps", {"method": "focus"}, "same", {"method": "full"}, "truthfulqa_mc1")
    record = made_record(True)
    assert page.judge(record, claim) is None
    for x in record["cells"].values():
        x["truthfulqa_mc1"], x["truthfulqa_mc1_by_window"] = 0.5, [1.0, 0.0]
    assert page.judge(record, claim)[0].startswith("agrees")


@pytest.mark.parametrize("better", [True, False])
def test_the_page_says_where_directions_disagree(tmp_path, better):
    """The paper's Focus beats the pretrained model."""
    (tmp_path / "retrofit.json").write_text(json.dumps(made_record(better)))
    text = page.make_page(tmp_path)
    (line,) = (line for line in text.splitlines() if "is better than the pretrained model" in line)
    assert ("**disagrees**" in line) != better
    assert text.count("Not run: `python") == len(page.STUDIES) - 1
    assert "Not run: `python scripts/paper/retrofit.py`" not in text
    assert "2 of 11 cells were run" in text


def test_a_page_of_nothing_says_so(tmp_path):
    text = page.make_page(tmp_path)
    assert all(f"Not run: `python scripts/paper/{name}.py`" in text for name in page.STUDIES)
    assert "agrees" not in text.replace("Where we agree", "")


def test_a_page_marks_what_leaks(tmp_path):
    record = made_record(True)
    record["cells"]["1"]["leaks"] = True
    (tmp_path / "retrofit.json").write_text(json.dumps(record))
    text = page.make_page(tmp_path)
    assert "| method focus † |" in text and "| method full |" in text


def test_the_page_is_current(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["page.py", "--check"])
    assert page.main() == 0, "run python scripts/paper/page.py"


def test_kinds_of_python_tokens():
    source = 'if x == 10:\n    y = "a b"  # note\n'
    found = {source[begin:end]: kind for begin, end, kind in labels.python_kinds(source)}
    wanted = {"if": "keyword", "x": "name", "==": "operator", "10": "number", '"a b"': "string", "# note": "comment"}
    assert wanted.items() <= found.items()


def test_tokens_take_the_class_of_their_first_character():
    text = "if  xy==3"
    offsets = [(0, 2), (2, 3), (3, 5), (5, 6), (6, 9)]  # "if", " ", " x", "y", "==3"
    kinds = labels.label_tokens(text, offsets, labels.python_kinds(text))
    assert kinds == ["keyword", "space", "name", "name", "operator"]


def test_parts_of_speech():
    pytest.importorskip("HanTa", reason="pip install --no-deps HanTa==1.2.1")
    text = "The dog was sold by a farmer, and he bought 3 cats."
    found = {text[begin:end]: part for begin, end, part in labels.parts_of_speech(text)}
    wanted = {"The": "determiner", "dog": "noun", "sold": "verb", ",": "punctuation", "he": "pronoun", "3": "number"}
    assert wanted.items() <= found.items()


def test_groups_that_are_the_classes_and_groups_that_are_not():
    compare = import_module("groups").compare
    classes = ["noun", "verb", "noun", "other"] * 50
    same = compare([{"noun": 2, "verb": 0, "other": 1}[x] for x in classes], classes)
    assert same["purity"] == 1 and same["adjusted_information"] == pytest.approx(1)
    drawn = torch.randint(0, 4, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    chance = compare(drawn, classes)
    assert abs(chance["adjusted_information"]) < 0.05 and chance["purity"] >= chance["majority"] == 0.5
