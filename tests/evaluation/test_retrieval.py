"""Scores are what greedy decoding would do; cells are the same items for all; a stopped run goes on."""

from __future__ import annotations

from random import Random

import pytest
import torch

from focus_kernels import FocusError
from focus_retrofit.evaluation import attending, parse_methods
from focus_retrofit.evaluation.retrieval import TASKS, Item, run_retrieval, summarise
from focus_retrofit.evaluation.retrieval.intervals import mean_error, paired, wilson
from focus_retrofit.evaluation.retrieval.run import make_items
from focus_retrofit.evaluation.retrieval.score import score_items
from tests.training.tiny import LetterTokenizer
from tests.training.tiny import model as make_model

T = 60
METHODS = parse_methods("full,window,random,focus,focus:2")


class Letters(LetterTokenizer):
    """As many tokens as the small model knows."""

    all_special_ids = (0,)

    def __len__(self):
        return 96


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def cells(model):
    return run_retrieval(model, Letters(), METHODS, ["copy", "induction"], [T, T + 8], [0.2, 0.8], items=3)


def items_of(count=3, answer=6):
    draw = Random(1)
    ids = [[draw.randrange(1, 96) for _ in range(T)] for _ in range(count)]
    return [Item(x[:-answer], x[-answer:]) for x in ids]


@pytest.mark.parametrize("method", ["full", "focus", "focus:2"])
def test_exact_is_what_greedy_decoding_says(model, method):
    """`generate` decodes through the cache; one wrong token and the answer is not exact, those before still are."""
    with attending(model, *parse_methods(method)[0]):
        for item in items_of():
            said = model.generate(torch.tensor([item.prompt]), max_new_tokens=6, do_sample=False)[0, T - 6 :].tolist()
            wrong = [*said[:3], said[3] % 95 + 1, *said[4:]]
            (right, other), _ = score_items(model, [Item(item.prompt, said), Item(item.prompt, wrong)])
            assert right["exact"] == right["tokens"] == 1
            assert other["exact"] == 0 and other["tokens"] >= 3 / 6
            assert other["nll"] > 0


@pytest.mark.parametrize("method", ["full", "window", "focus"])
def test_likelihood_is_that_of_the_whole_logits(model, method):
    items = items_of()
    with torch.inference_mode(), attending(model, *parse_methods(method)[0]):
        together, _ = score_items(model, items)
        for item, found in zip(items, together, strict=True):
            (alone,), _ = score_items(model, [item])
            chances = model(torch.tensor([item.ids]), use_cache=False).logits[0].float().log_softmax(-1)
            expected = [-chances[T - 7 + n, token].item() for n, token in enumerate(item.answer)]
            assert found["nll"] == pytest.approx(sum(expected) / 6, rel=1e-5) == pytest.approx(alone["nll"], rel=1e-5)


def test_a_choice_is_among_the_candidates(model):
    prompt = items_of(1)[0].prompt
    with torch.inference_mode():
        logits = model(torch.tensor([prompt]), use_cache=False).logits[0, -1]
    best, second, third = logits.topk(3).indices.tolist()
    choices = [Item(prompt, [second], (third, second)), Item(prompt, [third], (third, second)), Item(prompt, [best])]
    found, _ = score_items(model, choices)
    assert [x["choice"] for x in found] == [1, 0, 1]
    assert [x["exact"] for x in found] == [0, 0, 1]


def test_cells_are_complete_and_say_what_was_computed(cells):
    assert len(cells) == len({cell["key"] for cell in cells}) == len(METHODS) * 2 * (1 + 2)
    assert {cell["depth"] for cell in cells if cell["task"] == "copy"} == {None}
    for place in range(0, len(cells), len(METHODS)):
        full, window, random, focus, two = cells[place : place + len(METHODS)]
        assert full["density"] == 1 > two["density"] > focus["density"] > window["density"] > 0
        assert window["density"] < random["density"] < 1
        assert len(full["scores"]) == len(full["nlls"]) == full["items"] == 3
        assert full["nlls"] != focus["nlls"]


def test_methods_are_asked_the_same(model, cells):
    """Other methods, other order, other lengths beside: an item does not change."""
    method = parse_methods("focus,full")
    again = run_retrieval(model, Letters(), method, ["induction"], [T], [0.8], items=2, batch=2)
    for cell in again:
        (before,) = (x for x in cells if x["key"] == cell["key"])
        assert before["nlls"][:2] == pytest.approx(cell["nlls"], rel=1e-5)
    other = run_retrieval(model, Letters(), method[1:], ["induction"], [T], [0.8], items=2, seed=1)
    assert other[0]["nlls"] != again[1]["nlls"]


def test_a_stopped_run_goes_on_to_the_same(model, cells):
    kept, new = {cell["key"]: cell for cell in cells[:7]}, []
    again = run_retrieval(
        model, Letters(), METHODS, ["copy", "induction"], [T, T + 8], [0.2, 0.8], items=3, done=kept, on_cell=new.append
    )
    assert [cell["key"] for cell in new] == [cell["key"] for cell in cells[7:]]
    for first, second in zip(cells, again, strict=True):
        assert {**first, "seconds": 0} == {**second, "seconds": 0}  # what random groups drew too


def test_a_summary_is_over_items_and_paired(cells):
    rows = {(row["method"], row["task"]): row for row in summarise(cells)}
    assert len(rows) == len(METHODS) * 2
    full, focus = (
        [x for x in cells if x["method"] == m and x["task"] == "copy"] for m in ("full attention", "Focus, k = 1")
    )
    row = rows["Focus, k = 1", "copy"]
    assert row["items"] == 6 and row["cells"] == 2
    assert row["accuracy"] == pytest.approx(sum(sum(x["scores"]) for x in focus) / 6)
    expected = sum(x["nll"] - y["nll"] for x, y in zip(focus, full, strict=True)) / 2
    assert row["over_full"]["nll"] == pytest.approx(expected)
    assert row["over_full"]["difference"] == pytest.approx(row["accuracy"] - rows["full attention", "copy"]["accuracy"])
    assert rows["full attention", "copy"]["over_full"] is None
    assert summarise(focus)[0]["over_full"] is None


def test_intervals():
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 5)[0] == 0 and wilson(5, 5)[1] == 1
    assert mean_error([1.0, 3.0]) == (2.0, 1.0) and mean_error([1.0]) == (1.0, None)
    same = paired([1, 0, 1], [1, 0, 1])
    assert same["difference"] == 0 and same["interval"][0] < 0 < same["interval"][1]
    up, down = paired([1, 1, 1, 0], [0, 0, 1, 1]), paired([0, 0, 1, 1], [1, 1, 1, 0])
    assert (up["won"], up["lost"]) == (down["lost"], down["won"]) == (2, 1)
    assert up["interval"] == pytest.approx([-x for x in reversed(down["interval"])])
    assert paired([1] * 50, [0] * 50)["interval"][0] > 0.8


def test_an_item_that_is_known_is_found(model):
    """A model that is shown the answer scores 1: the last token of `copy` comes from where it should."""

    class Copier:
        """Says what followed the last place where the two tokens before stood."""

        device = torch.device("cpu")

        def __call__(self, ids, use_cache, logits_to_keep):
            logits = torch.zeros(*ids.shape, 96)
            for row, tokens in enumerate(ids.tolist()):
                for n in range(2, len(tokens)):
                    places = [m for m in range(1, n) if tokens[m - 1 : m + 1] == tokens[n - 1 : n + 1]]
                    if places:
                        logits[row, n, tokens[places[-1] + 1]] = 9.0
            return type("Output", (), {"logits": logits[:, -logits_to_keep:]})

    from focus_retrofit.evaluation.retrieval import Setting

    for task in ("copy", "induction"):
        items = make_items(Setting(Letters(), apart=8), task, 80, 0.5 if TASKS[task].deep else None, 4, 0)
        found, _ = score_items(Copier(), items)
        assert sum(x["tokens"] for x in found) / 4 > 0.9, task


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": ["haystack"]}, "task 'haystack' is not known; choose from passkey"),
        ({"depths": [0.5, 1.5]}, "depth 1.5 is not between"),
        ({"depths": []}, "no depths are given"),
        ({"items": 0}, "all must be 1 or more"),
        ({"lengths": []}, "all must be 1 or more"),
        ({"lengths": [8]}, "an induction item of 8 tokens is too short"),
    ],
)
def test_mistakes_are_named(model, change, message):
    asked = {"tasks": ["induction"], "lengths": [T], "depths": [0.5], "items": 1} | change
    with pytest.raises(FocusError, match=message):
        run_retrieval(model, Letters(), METHODS, **asked)


@pytest.mark.parametrize("narrow", [False, True])
def test_the_heat_map_says_what_the_cells_say(cells, narrow):
    pytest.importorskip("matplotlib", reason="pip install focus-retrofit[report]")
    from focus_retrofit.report.plot_retrieval import draw, draw_retrieval

    own = [dict(cell) for cell in cells if cell["task"] == "induction"]
    for number, cell in enumerate(own):
        cell["accuracy"] = number / len(own)
    figure = draw(own, narrow)
    titles = [axis.get_title(loc="left") for axis in figure.axes if axis.get_visible()]
    assert titles == [cell["method"] for cell in own[: len(METHODS)]]
    for axis in figure.axes[: len(METHODS)]:
        there = {tuple(text.get_position()): text.get_text() for text in axis.texts}
        mine = [cell for cell in own if cell["method"] == axis.get_title(loc="left")]
        assert len(there) == len(mine) == 4
        for cell in mine:
            place = ([T, T + 8].index(cell["length"]), [0.2, 0.8].index(cell["depth"]))
            assert there[place] == f"{100 * cell['accuracy']:.0f}\u00a0%"
    assert draw_retrieval(cells, "induction", narrow).startswith(b"\x89PNG")
    with pytest.raises(FocusError, match="no cell of task 'copy' has a depth"):
        draw_retrieval(cells, "copy")
