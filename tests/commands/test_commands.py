"""Each command on a small real model, as a user would call it."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoTokenizer

from focus_retrofit import load_adapter, load_pretrained
from focus_retrofit.commands.load import SAMPLE, sample_windows
from tests.matrix import BY_NAME

from .conftest import call

FEW = ["--length", 96]


def data(done):
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_eval_compares_on_the_same_windows(small, tmp_path):
    words = ["eval", *small.model, small.text, *FEW, "--windows", 3, "--output", tmp_path / "found.json", "--json"]
    found = data(call(*words, "--methods", "full,window,focus"))
    rows = {row["method"]: row for row in found["rows"]}
    assert set(rows) == {"full attention", "window and sinks only", "Focus, k = 1"}
    assert rows["full attention"]["over_full"] == 0
    assert rows["window and sinks only"]["distant"] < rows["Focus, k = 1"]["distant"] < 0.6
    more = data(call(*words, "--methods", "full,focus:4,random,strided:2,soft"))  # goes on in the same file
    rows = {row["method"]: row for row in more["rows"]}
    assert rows["Focus, k = 4"]["perplexity"] == pytest.approx(rows["full attention"]["perplexity"], rel=1e-4)
    assert len(json.loads((tmp_path / "found.json").read_text())["rows"]) == 7
    other = call(*words, "--windows", 2)
    assert other.exit_code == 2
    assert "windows 3 -> 2" in other.output


@pytest.mark.parametrize("command", ["eval", "compare"])
def test_results_of_another_adapter_in_its_place_are_not_mixed(small, tmp_path, command):
    """The same words, but the adapter of that name was trained anew meanwhile."""
    shutil.copytree(small.folder / "adapter", tmp_path / "adapter")
    words = [command, small.folder / "model", "--adapter", tmp_path / "adapter", small.folder / "data.jsonl"]
    length = ["--length", 48] if command == "eval" else ["--lengths", 48, "--train-windows", 1, "--steps", 1]
    words += [*length, "--windows", 1, "--methods", "full,focus", "--output", tmp_path / "found.json"]
    assert call(*words).exit_code == 0
    assert call(*words).exit_code == 0
    model = load_adapter(BY_NAME["Llama"].make(dtype=torch.float32), str(tmp_path / "adapter"))
    with torch.no_grad():
        model.focus.router(0).centroids += 1
    model.focus.save_pretrained(tmp_path / "adapter")
    other = call(*words)
    assert other.exit_code != 0
    assert "holds results of another run (tensors" in other.output


def test_eval_slides_and_tells_positions_apart(small):
    words = [
        "eval",
        *small.model,
        small.text,
        "--length",
        64,
        "--stride",
        16,
        "--windows",
        0,
        "--methods",
        "full,focus",
    ]
    found = data(call(*words, "--json"))
    assert found["counted"] > 20  # they overlap: there are some 1,200 letters
    full = found["rows"][0]
    scored = [part is not None for part in full["by_position"]]
    assert scored == [False] * 6 + [True] * 2
    done = call(*words, "--by-position")
    assert "up to a position" in done.stdout
    assert call(*words[:-4], "--stride", 64).exit_code == 2


def test_eval_beyond_the_positions_of_the_model(small, tmp_path):
    words = ["eval", *small.model, small.text, "--length", 640, "--windows", 1, "--methods", "full,focus"]
    scaled = [*words, "--rope", "yarn", "--rope-factor", 2, "--output", tmp_path / "found.json"]
    plain, found = data(call(*words, "--json")), data(call(*scaled, "--json"))
    for row, other in zip(found["rows"], plain["rows"], strict=True):
        assert len(row["by_doubling"]) == 3 and row["perplexity"] != other["perplexity"]
    assert found["asked"]["rope"] == "yarn" and "rope" not in plain["asked"]
    done = call(*scaled, "--by-doubling")
    assert done.exit_code == 0 and "640" in done.stdout and "256" in done.stdout
    for wrong, reason in (
        ([*scaled, "--rope", "none"], "rope 'yarn' -> None"),
        ([*words, "--rope", "ntk", "--rope-factor", 1], "more than 1"),
        ([*words, "--rope-factor", 2], "needs a rope"),
    ):
        refused = call(*wrong)
        assert refused.exit_code == 2 and reason in refused.output


def test_eval_finds_what_is_hidden(small, tmp_path):
    words = [
        "--retrieval",
        "induction",
        "--lengths",
        "48,64",
        "--depths",
        "0,1",
        "--items",
        2,
        "--methods",
        "full,focus",
    ]
    output = tmp_path / "found.json"
    found = data(call("eval", *small.model, *words, "--output", output, "--json"))
    assert [row["method"] for row in found["rows"]] == ["full attention", "Focus, k = 1"]
    assert all(row["items"] == 8 for row in found["rows"])
    assert (tmp_path / "found-induction.png").stat().st_size > 5000
    shown = call("eval", *small.model, *words, "--output", output)  # nothing is run again
    assert "induction, 8 items" in shown.stdout


def test_eval_measures_one_thing(small):
    for words in ([], [small.text, "--retrieval", "passkey"]):
        done = call("eval", *small.model, *words)
        assert done.exit_code == 2
        assert "evaluate on one thing" in done.output


def test_eval_prints_a_table(small):
    done = call("eval", *small.model, small.text, *FEW, "--windows", 2, "--methods", "full,focus")
    assert done.exit_code == 0, done.output
    assert "full attention" in done.stdout
    assert "Focus, k = 1" in done.stdout


def test_generate_streams_and_compares(small):
    prompt = small.text.read_text()[:100]
    words = ["generate", *small.model, "--max-new-tokens", 12]
    plain = call(*words, prompt)
    assert plain.exit_code == 0, plain.output
    assert plain.stdout.startswith(prompt)
    found = data(call(*words, prompt, "--compare", "--json"))
    assert found["prompt_tokens"] == 100
    assert found["same"] is None or 0 <= found["same"] < 12
    both = call(*words, "--prompt-file", small.text, "--compare", "--max-new-tokens", 3)
    assert both.exit_code == 0, both.output
    assert both.stdout.count("---") == 3
    within = data(call(*words, "abc", "--compare", "--json", "--max-new-tokens", 5, "--sampling-temperature", 0.7))
    assert within["same"] is None, "within the window Focus is the base"


def test_generate_from_a_long_prompt(small, tmp_path):
    """Read in chunks, held smaller, held in files: the same text."""
    words = ["generate", *small.model, "hello, hello! " * 20, "--max-new-tokens", 4, "--json"]
    plain = json.loads(call(*words).stdout)
    held = ["--chunk", 50, "--cache-dtype", "bfloat16", "--spill", tmp_path]
    for more in (held[:2], held[4:], held):
        found = json.loads(call(*words, *more).stdout)
        assert found["prompt_tokens"] == plain["prompt_tokens"] and len(found["ids"]) == 4
        assert found["ids"] == plain["ids"] or "bfloat16" in more
    assert list(tmp_path.iterdir()) == []
    both = json.loads(call(*words, *held, "--compare").stdout)
    assert both["new_tokens"] == 4


def test_generate_from_standard_input(small):
    done = call("generate", *small.model, "--prompt-file", "-", "--max-new-tokens", 2, "--json", input="hello")
    assert data(done)["prompt_tokens"] == 5


def test_chat_goes_on_with_its_cache(small):
    lines = "hello\nand then\n/base\nagain\n/focus\nmore\n/report\n/what\n/new\n/quit\n"
    done = call("chat", *small.model, "--max-new-tokens", 4, "--system", "be brief", input=lines)
    assert done.exit_code == 0, done.output
    assert "attention: base" in done.output
    assert "attention: focus" in done.output
    assert "Focus enabled" in done.output


def test_a_chat_with_a_cache_says_what_one_without_says(small):
    from focus_retrofit.commands.chat import Talk

    model, tokenizer = load_pretrained(small.folder / "model")
    load_adapter(model, str(small.folder / "adapter"))
    picked = {"max_new_tokens": 6, "do_sample": False}
    talk, anew = (Talk(model, tokenizer, None, picked) for _ in range(2))
    lengths = []
    for line in ("tell me of the sea", "and of the land", "and the air"):
        talk.say(line)
        anew.forget()
        anew.say(line)
        lengths.append(talk.cache.get_seq_length())
    assert talk.messages == anew.messages
    assert lengths == sorted(set(lengths))


def test_inspect_shows_groups(small, tmp_path):
    words = ["inspect", *small.model, small.text, *FEW]
    found = data(call(*words, "--json"))
    assert len(found["tokens"]) == 96
    assert len(found["layers"]) == 3
    layer = found["layers"][0]
    assert sum(layer["shares"]) == pytest.approx(1)
    assert 0 <= layer["kept"] <= 1
    assert len(layer["groups"]) == 96
    shown = call(*words, "--layer", 2)
    assert "layer 2:" in shown.stdout
    assert "layer 7 is not retrofitted" in call(*words, "--layer", 7).output
    page = tmp_path / "groups.html"
    assert call(*words, "--html", page).exit_code == 0
    assert page.stat().st_size > 10_000


def test_audit_holds_and_its_exit_code_says_so(small):
    words = ["audit", *small.model, "--text", small.text, *FEW, "--largest-group", 0.9]
    found = data(call(*words, "--json"))
    assert found["holds"]
    assert len(found["checks"]) == 11
    strict = call("audit", *small.model, "--text", small.text, *FEW, "--largest-group", 0.25)
    assert strict.exit_code == 1
    assert "FAILS  balanced groups" in strict.output


def test_audit_of_a_foreign_adapter(small, tmp_path):
    from focus_retrofit import FocusConfig, retrofit
    from tests.matrix import BY_NAME

    other = retrofit(BY_NAME["Qwen2"].make(), FocusConfig(num_groups=2, top_k=1))
    other.focus.save_pretrained(tmp_path / "other")
    done = call("audit", small.folder / "model", "--adapter", tmp_path / "other")
    assert done.exit_code == 2
    assert "made for another model" in done.output


def test_export_with_the_base_stands_alone(small, tmp_path):
    found = data(call("export", *small.model, tmp_path / "out", "--with-base", "--json"))
    assert "model.safetensors" in found["files"]
    assert "12.5" in (tmp_path / "out" / "README.md").read_text()
    model, tokenizer = load_pretrained(tmp_path / "out")
    ids = torch.tensor([tokenizer("hello there").input_ids])
    base, _ = load_pretrained(small.folder / "model")
    assert torch.equal(model(ids).logits, base(ids).logits)
    load_adapter(model, str(tmp_path / "out"))
    assert call("export", *small.model, tmp_path / "out").exit_code == 0, "an earlier export may be written over"
    changed = call("export", *small.model, tmp_path / "k2", "--top-k", 2)
    assert changed.exit_code == 0
    assert "12.5" not in (tmp_path / "k2" / "README.md").read_text(), "results of another k"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    refused = call("export", *small.model, tmp_path / "full")
    assert refused.exit_code == 2
    assert "something else" in refused.output


def test_untrained_routers_are_balanced(small):
    words = ["--adapter", "none", "--num-groups", 4, "--top-k", 1, "--window", 8, "--sinks", 2]
    done = call("inspect", small.folder / "model", *words, small.text, *FEW, "--json")
    assert max(data(done)["layers"][1]["shares"]) < 0.8


def test_windows_to_balance_on_are_spread_over_a_text(small):
    tokenizer = AutoTokenizer.from_pretrained(small.model[0])
    text = "".join(chr(97 + n // 1000 % 26) for n in range(26 * 1000))
    (only,) = sample_windows(tokenizer, text)
    assert only.shape == (1, SAMPLE) and int(only[0, 0]) == 1 and int(only[0, -1]) == 3
    four = sample_windows(tokenizer, text, 4)
    assert [int(ids[0, 0]) for ids in four] == [1, 7, 14, 20] and all(ids.shape == (1, SAMPLE) for ids in four)
    assert len(sample_windows(tokenizer, text[: SAMPLE + 10], 4)) == 1, "ten tokens say nothing"
    assert sum(ids.numel() for ids in sample_windows(tokenizer, "", 4)) > SAMPLE, "the Python reference"


def test_bench_of_a_layer_and_of_a_model(small, tmp_path):
    layer = ["--lengths", "64,128", "--repeats", 1]
    words = ["--heads", "2/1", "--head-size", 16, "--num-groups", 4, "--top-k", 1, "--window", 8]
    rows = data(call("bench", "kernel", *layer, *words, "--output", tmp_path / "a.json", "--json"))
    assert [row["tokens"] for row in rows["rows"]] == [64, 128]
    assert rows["rows"] == json.loads((tmp_path / "a.json").read_text())["rows"] and rows["schema"] == 2
    trained = call("bench", "training", "--lengths", "64", "--repeats", 1, *words, "--plot", tmp_path / "a.png")
    assert trained.exit_code == 0, trained.output
    assert "lm-hard, explore = 1" in trained.stdout and (tmp_path / "a.png").exists()
    for part in ("prefill", "decode", "step"):
        few = ["--new-tokens", 2] if part == "decode" else []
        done = call("bench", part, *small.model, "--lengths", "64", "--repeats", 1, *few)
        assert done.exit_code == 0, done.output
        assert {"step": "training"}.get(part, part) in done.stdout
    same = data(call("bench", "compare", tmp_path / "a.json", tmp_path / "a.json", "--json"))
    assert all(one["verdict"] == "same" for one in same["rows"])
    wrong = call("bench", "kernel", "--heads", "x")
    assert wrong.exit_code == 2
    assert "heads is 'x'" in wrong.output
