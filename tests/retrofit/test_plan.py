"""Plans: sizes as transformers counts them, memory as autograd keeps it, and the order things must come in."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
import transformers
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_retrofit import FocusConfig, FocusError, retrofit
from focus_retrofit.cli import main
from focus_retrofit.planning.hardware import GPU, GPUS, find_gpu
from focus_retrofit.planning.models import MODELS, find_model, from_config
from focus_retrofit.planning.training import OBJECTIVES, Plan, Run, flops, kept, memory, plan
from focus_retrofit.training.objectives import Objective
from focus_retrofit.training.options import TERMS

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GQA = {"num_key_value_heads": 2}
COUNTED = [
    ("Llama", "LlamaForCausalLM", GQA),
    ("Llama", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("Mistral", "MistralForCausalLM", {**GQA, "head_dim": 16}),
    ("Qwen2", "Qwen2ForCausalLM", GQA),
    ("Qwen3", "Qwen3ForCausalLM", GQA),
    ("Olmo2", "Olmo2ForCausalLM", GQA),
    ("Phi3", "Phi3ForCausalLM", GQA),
    ("Gemma2", "Gemma2ForCausalLM", {**GQA, "head_dim": 8}),
    ("Gemma3Text", "Gemma3ForCausalLM", {**GQA, "head_dim": 8}),
    ("GPTNeoX", "GPTNeoXForCausalLM", {}),
    ("GPT2", "GPT2LMHeadModel", {}),
    ("GPT2", "GPT2LMHeadModel", {"n_inner": 40}),
]
PUBLISHED = {
    "gpt2": 124_439_808,
    "smollm2-135m": 134_515_008,
    "llama-2-7b": 6_738_415_616,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "llama-3.1-8b": 8_030_261_248,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-70b": 70_553_706_496,
}


@pytest.mark.parametrize(("family", "model", "options"), COUNTED, ids=lambda x: x if isinstance(x, str) else "")
def test_parameters_are_counted_as_transformers_does(family: str, model: str, options: dict[str, Any]) -> None:
    config = getattr(transformers, family + "Config")(**{**SIZES, **options})
    with torch.device("meta"):
        real = getattr(transformers, model)(config)
    assert from_config(config, family).parameters == sum(p.numel() for p in real.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_known_models_have_their_published_size(name: str) -> None:
    assert MODELS[name].parameters == PUBLISHED[name]


@pytest.mark.parametrize(("name", "config"), [("gpt2", "GPT2Config"), ("llama-2-7b", "LlamaConfig")])
def test_a_config_on_disk_gives_the_same_sizes(tmp_path: Path, name: str, config: str) -> None:
    getattr(transformers, config)().save_pretrained(tmp_path)  # both defaults are that model
    found = find_model(tmp_path)
    assert replace(found, name=name, head_dim=0) == MODELS[name]


def keeping(run: Run, family: str) -> float:
    """Bytes that autograd keeps for one more layer of a real, retrofitted model."""
    totals = []
    for layers in (2, 3):
        sizes = {**SIZES, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": layers}
        if family == "GPT2":
            sizes = {"vocab_size": 96, "n_embd": 64, "n_head": 4, "n_layer": layers, "bos_token_id": 1}
            sizes |= {"eos_token_id": 2, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
            config: Any = transformers.GPT2Config(**sizes)
        else:
            config = transformers.LlamaConfig(**sizes, **GQA)
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model = retrofit(model, run.focus).train()
        own = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers())}
        found: list[ref[torch.Tensor]] = []

        def keep(x: torch.Tensor, found: list[ref[torch.Tensor]] = found) -> torch.Tensor:
            found.append(ref(x))
            return x

        tokens = torch.randint(3, 96, (run.batch, run.length))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            loss = Objective(run.objective)(model, model.focus, {"input_ids": tokens, "labels": tokens}, 1.0)
        alive = [x.untyped_storage() for x in (weak() for weak in found) if x is not None]
        totals.append(sum({x.data_ptr(): x.nbytes() for x in alive if x.data_ptr() not in own}.values()))
        del loss  # which held them
    return totals[1] - totals[0]


@pytest.mark.parametrize("family", ["Llama", "GPT2"])
@pytest.mark.parametrize("objective", ["lm", "lm-hard"])
def test_a_layer_keeps_what_the_formula_says(family: str, objective: str) -> None:
    llama = replace(MODELS["llama-2-7b"], hidden=64, heads=4, kv_heads=2, intermediate=128, vocab=96)
    gpt2 = replace(MODELS["gpt2"], hidden=64, heads=4, kv_heads=4, intermediate=256, vocab=96)
    focus = FocusConfig(num_groups=4, top_k=1, group_dim=8, window=32)
    run = Run(llama if family == "Llama" else gpt2, focus, objective, length=256, batch=2, steps=1)
    assert sum(kept(run)) == pytest.approx(keeping(run, family), rel=0.03)


def test_mass_keeps_nothing_that_grows_with_the_text() -> None:
    focus = FocusConfig(num_groups=4, top_k=1, group_dim=8, window=32)
    short, long = (Run(MODELS["gpt2"], focus, "mass", length, 2, 1) for length in (64, 256))
    assert kept(long) == (0, 0)
    assert keeping(long, "Llama") == keeping(short, "Llama")


def test_the_objectives_are_the_trainers() -> None:
    assert set(OBJECTIVES) == set(TERMS) - {"balance"}  # which costs nothing to speak of


names, lengths = st.sampled_from(sorted(MODELS)), st.integers(256, 65536)
objectives, gpu_counts, switches = st.sampled_from(OBJECTIVES), st.integers(2, 63), st.booleans()


def total(found: Plan, way: str) -> float:
    memory = found.way(way).memory
    assert memory is not None
    return memory.total


@settings(max_examples=60, deadline=None)
@given(names, objectives, lengths, gpu_counts, switches)
def test_more_gpus_never_need_more_memory_each(model: str, objective: str, length: int, gpus: int, on: bool) -> None:
    few, many = (plan(model, objective=objective, length=length, gpus=n, checkpointing=on) for n in (gpus, gpus + 1))
    for way in ("fsdp2", "device-map"):
        assert total(many, way) <= total(few, way)


@settings(max_examples=60, deadline=None)
@given(names, objectives, lengths, st.integers(1, 5000), switches)
def test_longer_texts_never_take_less(model: str, objective: str, length: int, more: int, on: bool) -> None:
    options: dict[str, Any] = {"objective": objective, "gpus": 4, "checkpointing": on}
    short, long = plan(model, length=length, **options), plan(model, length=length + more, **options)
    for before, after in zip(short.ways, long.ways, strict=True):
        assert before.memory is not None and after.memory is not None
        assert all(after.memory.to_dict()[part] >= size for part, size in before.memory.to_dict().items())
        assert after.seconds >= before.seconds


@settings(max_examples=60, deadline=None)
@given(names, objectives, lengths)
def test_checkpointing_takes_time_for_memory(model: str, objective: str, length: int) -> None:
    run = Run(MODELS[model], FocusConfig(), objective, length, 1, 1)
    if objective == "mass":
        assert not any(way.checkpointing for way in plan(model, objective=objective, length=length).ways)
        return
    assert memory(run, 0, run.model.layers, True).total < memory(run, 0, run.model.layers, False).total
    assert flops(run, True) > flops(run, False)


@given(names, lengths, gpu_counts)
@settings(max_examples=30, deadline=None)
def test_the_recommended_way_fits_and_none_is_much_faster(model: str, length: int, gpus: int) -> None:
    found = plan(model, length=length, gpus=gpus, gpu="rtx4090-24")
    best, fitting = found.recommended, [way for way in found.ways if way.fits]
    assert (best is None) == (not fitting)
    if best is not None:
        assert best in fitting
        assert best.tokens_per_second >= 0.99 * max(way.tokens_per_second for way in fitting)
    for way in found.ways:
        assert way.memory is not None
        assert way.fits == (way.memory.total <= 24e9) == (not way.reason)


@pytest.mark.parametrize("model", ["llama-2-7b", "gpt2"])
def test_hard_training_is_cheaper_than_soft_at_length(model: str) -> None:
    hard, soft = (plan(model, objective=objective, length=16384).way("one") for objective in ("lm-hard", "lm"))
    assert hard.memory is not None and soft.memory is not None
    assert hard.memory.total < soft.memory.total / 3
    assert hard.seconds < soft.seconds


def test_fewer_explored_groups_cost_less() -> None:
    seconds = [
        plan("llama-2-7b", length=16384, checkpointing=True, focus=FocusConfig(explore=explore)).way("one").seconds
        for explore in (2, 4, None)
    ]
    assert seconds == sorted(seconds) and seconds[0] < seconds[-1]


def test_the_arithmetic_of_a_small_case() -> None:
    """FLOPs without attention to speak of: 4 per matrix element and token, 6 with the layers computed again."""
    run = Run(MODELS["llama-2-7b"], FocusConfig(), "lm-hard", 256, 1, 1)
    matrices = MODELS["llama-2-7b"].parameters - 32000 * 4096
    assert flops(run, False) == pytest.approx(4 * matrices * 256, rel=0.02)
    assert flops(run, True) == pytest.approx(6 * matrices * 256, rel=0.03)
    one = plan("llama-2-7b", length=256, gpu=GPU("gpu", 80, 100), utilisation=0.5).way("one")
    assert one.seconds == pytest.approx(flops(run, False) / 50e12)
    assert one.hours == pytest.approx(1000 * one.seconds / 3600)
    assert one.memory is not None and one.memory.weights == 2 * PUBLISHED["llama-2-7b"]
    assert one.memory.adapter == 16 * 32 * (4096 + 8) * 16


def test_adapters_are_counted_as_they_are() -> None:
    config = transformers.LlamaConfig(**SIZES, **GQA)
    model: Any = retrofit(transformers.LlamaForCausalLM(config), FocusConfig(num_groups=4, top_k=1))
    run = Run(from_config(config, "llama"), model.focus.config, "lm-hard", 256, 1, 1)
    assert run.adapter == sum(p.numel() for p in model.focus.trainable_parameters())


def test_slow_links_hold_fsdp2_up() -> None:
    fast, slow = (plan("llama-2-7b", gpus=4, gpu=find_gpu("a100-80", link=link)).way("fsdp2") for link in (200, 1))
    assert slow.seconds == pytest.approx(2 * 2 * PUBLISHED["llama-2-7b"] * 3 / 4 / 1e9)
    assert fast.seconds < slow.seconds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "no/such/model/here"}, "llama-2-7b"),
        ({"gpu": "abacus"}, "h100-80"),
        ({"gpus": 0}, "gpus is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"length": 128}, "window of 128"),
        ({"objective": "sleep"}, "lm-hard"),
        ({"utilisation": 1.5}, "utilisation is 1.5"),
    ],
)
def test_mistakes_name_the_way_out(options: dict[str, Any], message: str) -> None:
    options = {"model": "gpt2", **options}
    with pytest.raises(FocusError, match=re.escape(message)):
        plan(options.pop("model"), **options)


def test_a_family_that_cannot_be_counted_is_refused() -> None:
    with pytest.raises(FocusError, match=r"'mixtral'.*ModelFacts"):
        from_config(transformers.MixtralConfig(), "mixtral")


def test_a_gpu_of_ones_own() -> None:
    assert find_gpu(memory=48, tflops=200) == GPU("gpu", 48, 200)
    assert find_gpu("H100-80", memory=94) == replace(GPUS["h100-80"], memory=94)
    with pytest.raises(FocusError, match="TFLOPS"):
        find_gpu(memory=48)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configs_are_what_accelerate_takes(path: Path) -> None:
    config = load_config_from_file(str(path))
    assert config.fsdp_config["fsdp_version"] == 2
    words = ["--config_file", str(path), "--fsdp_activation_checkpointing", "no", "train.py"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    assert args.use_fsdp and args.num_processes == {"7b": 2, "13b": 4, "70b": 8}[path.stem.partition("-")[2]]
    assert args.mixed_precision == "bf16" and args.fsdp_auto_wrap_policy == "TRANSFORMER_BASED_WRAP"
    known = {action.dest for action in launch_command_parser()._actions}
    assert set(config.fsdp_config) <= known  # a misspelt option would be ignored
    assert args.fsdp_activation_checkpointing == "no"  # the command line goes first


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configs_state_the_plans_memory(path: Path) -> None:
    stated = re.findall(r"#\s+focus-retrofit (plan .*)\n#\s+fsdp2: ([\d.]+) GB", path.read_text())
    assert stated
    for command, size in stated:
        found = json.loads(call(*shlex.split(command), "--json").stdout)
        way = next(way for way in found["ways"] if way["name"] == "fsdp2")
        assert way["fits"] and f"{way['memory']['total'] / 1e9:.1f}" == size
        assert f"--num_processes {found['gpus']} " in way["launch"] and path.name in way["launch"]
    command = stated[0][0]
    way = json.loads(call(*shlex.split(command), "--json").stdout)["ways"][-1]
    assert load_config_from_file(str(path)).fsdp_config["fsdp_activation_checkpointing"] == way["checkpointing"]


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_the_table_has_a_line_per_way() -> None:
    done = call("plan", "--model", "llama-2-70b", "--gpus", "8", "--length", "4096")
    assert done.exit_code == 0, done.output
    for way in plan("llama-2-70b", gpus=8, length=4096).ways:
        (line,) = (line for line in done.stdout.splitlines() if line.split()[:1] == [way.name])
        assert way.memory is not None and f"{way.memory.total / 1e9:.1f}" in line
    assert "one: 150.6 GB of 80 even with gradient checkpointing; weights alone: 138.0 GB" in done.stdout
    assert "Recommended: fsdp2" in done.stdout and "configs/fsdp2-70b.yaml" in done.stdout
    assert "…" not in done.stdout


def test_json_is_the_plan() -> None:
    words = ["--gpus", "2", "--gpu", "l40s-48", "--objective", "distill", "--groups", "4", "--top-k", "1", "--json"]
    done = call("plan", "--model", "qwen2.5-7b", *words)
    focus = FocusConfig(num_groups=4, top_k=1)
    expected = plan("qwen2.5-7b", gpus=2, gpu="l40s-48", objective="distill", focus=focus).to_dict()
    assert json.loads(done.stdout) == json.loads(json.dumps(expected))


def test_nothing_fitting_is_an_answer() -> None:
    done = call("plan", "--model", "llama-2-70b", "--gpu-memory", "8", "--gpu-tflops", "30")
    assert done.exit_code == 0 and "Nothing fits" in done.stdout and "needs two GPUs" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "no/such/model/here"], "no config of a model"),
        (["--model", "gpt2", "--gpu", "abacus"], "abacus"),
        (["--model", "gpt2", "--gpu-memory", "8"], "TFLOPS"),
        (["--model", "gpt2", "--top-k", "9"], "top_k is 9"),
        (["--model", "gpt2", "--window", "-1"], "window is -1"),
        ([], "--model"),
    ],
)
def test_mistakes_are_one_line_and_code_2(words: list[str], message: str) -> None:
    done = call("plan", *words)
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output
    if words:
        assert len(done.stderr.splitlines()) == 1


def test_debug_shows_where_an_error_comes_from() -> None:
    done = call("--debug", "plan", "--model", "gpt2", "--gpu", "abacus")
    assert isinstance(done.exception, FocusError)


def test_help_loads_nothing_heavy() -> None:
    heavy = "('torch', 'transformers', 'numpy', 'accelerate', 'rich')"
    code = f"import sys, focus_retrofit.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
