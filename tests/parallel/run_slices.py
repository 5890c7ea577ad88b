"""Prefills over processes beside those of one: errors and traffic of many cases."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from focus_retrofit import FocusConfig, retrofit
from focus_retrofit.parallel import expected_traffic, gather_cache, prefill_in_parallel
from tests.matrix import BY_NAME, VOCABULARY


@dataclass
class Case:
    """A tiny model, how it is routed, and a prompt."""

    family: str = "Llama"
    tokens: int = 97
    batch: int = 1
    groups: str = "spread"  # spread, one (which holds everything), empty (some are)
    options: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    generates: bool = False


def probe(num_groups, top_k, **options):
    return {"num_groups": num_groups, "top_k": top_k, **options}


CASES = {
    "one group each": Case(),
    "two of three groups": Case(options=probe(3, 2), generates=True),
    "more groups than ranks": Case(options=probe(9, 2), tokens=131),
    "fewer groups than ranks": Case(options=probe(2, 1), tokens=131),
    "all in one group": Case(groups="one"),
    "empty groups": Case(groups="empty", options=probe(6, 2)),
    "slices shorter than the window": Case(options={"window": 40, "sinks": 3}, tokens=51),
    "nothing distant": Case(options={"window": 64}, tokens=50),
    "slices shorter than the sinks": Case(options={"window": 8, "sinks": 5}, tokens=13),
    "a batch": Case(batch=3, options=probe(4, 2), generates=True),
    "no sinks, no window": Case(options={"window": 0, "sinks": 0}, tokens=41),
    "share": Case(options={"match": "share"}),
    "temperature": Case(options={"temperature": 0.6, "min_length": 30}, generates=True),
    "temperature everywhere": Case(options={"temperature": 0.7, "temperature_scope": "all", "min_length": 70}),
    "temperature by input": Case(options={"temperature": "input", "temperature_scope": "all", "min_length": 20}),
    "temperature by head": Case(options={"temperature": "heads", "min_length": 30}, generates=True),
    "some layers dense": Case(options={"layers": [1]}, generates=True),
    "GPT-2": Case("GPT2", generates=True),
    "softcap and windows": Case("Gemma2", generates=True),
    "learned sinks and windows": Case("GptOss", generates=True),
    "latent": Case("DeepseekV3"),
}


def make(case, dtype=torch.float64):
    config = FocusConfig(**{"num_groups": 4, "top_k": 1, "window": 8, "sinks": 2, **case.options})
    model = retrofit(BY_NAME[case.family].make(dtype=dtype, **case.model), config)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, VOCABULARY, (case.batch, case.tokens), generator=generator)
    if case.groups == "spread":
        model.focus.balance(ids)
    for index in model.focus.layer_indices:
        router = model.focus.router(index)
        if case.groups == "one":
            router.potentials[2] = 1e4
        elif case.groups == "empty":
            router.potentials[1:4] = -1e4
        with torch.no_grad():
            if config.temperature == "input":
                router.temperature.normal_(0, 0.3, generator=generator)
            elif config.temperature == "heads":
                router.temperature.uniform_(0.5, 1.5, generator=generator)
    return model, ids


def continued(model, ids, cache):
    """Greedy tokens, and the logits they came from, after a prompt whose cache is given."""
    options = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    done = model.generate(ids, past_key_values=cache, **options)
    return done.sequences, torch.stack(done.logits)


def run(case):
    """What went wrong, as numbers; on rank 0."""
    model, ids = make(case)
    done = prefill_in_parallel(model, ids, all_logits=True)
    groups = {n: model.focus.all_groups_seen(n) for n in model.focus.layer_indices}
    cache = gather_cache(done) if case.generates else None
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, (done.start, done.logits, groups, done.last, done.traffic.sent))
    if dist.get_rank():
        return {}
    with torch.no_grad():
        alone = model(input_ids=ids, use_cache=False).logits
        with model.focus.disabled():
            base = model(input_ids=ids, use_cache=False).logits
    found = {
        "starts": [part[0] for part in everything],
        "error": float((torch.cat([part[1] for part in everything], 1) - alone).abs().max()),
        "sparse": float((alone - base).abs().max()),
        "last": max(float((part[3] - alone[:, -1]).abs().max()) for part in everything),
        "groups": all(
            torch.equal(torch.cat([part[2][n] for part in everything], 1), model.focus.all_groups_seen(n))
            for n in model.focus.layer_indices
        ),
        "sent": {kind: sum(part[4][kind] for part in everything) for kind in everything[0][4]},
    }
    if cache is not None:
        first = torch.cat([ids, done.last.argmax(-1, keepdim=True)], 1)
        own = model.focus.new_cache()
        with torch.no_grad():
            model(input_ids=ids, past_key_values=own)
        mine, theirs = continued(model, first, cache), continued(model, first, own)
        found["continued"] = float((mine[1] - theirs[1]).abs().max())
        found["same text"] = torch.equal(mine[0], theirs[0])
    return found


def in_turn(ranks, tokens):
    """For `focus.watch`: tokens join the four groups in turn, those of a slice as those of all."""
    mine = torch.arange(tokens) + dist.get_rank() * tokens // ranks

    def share_out(seen):
        sliced = seen.routed.groups.shape[1] < tokens
        ids = mine[: tokens // ranks] if sliced else torch.arange(tokens)
        seen.routed.groups.copy_(ids[None, :, None] % 4)

    return share_out


def traffic(ranks):
    """Even groups by construction, against the formula: bytes of all ranks, one layer."""
    model, ids = make(Case(tokens=512, model={"num_hidden_layers": 1}))
    model.focus.watch = in_turn(ranks, 512)
    done = prefill_in_parallel(model, ids, keep_cache=False)
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, done.traffic.sent)
    sent = {kind: sum(one[kind] for one in everyone) for kind in everyone[0]}
    return {"sent": sent, "expected": expected_traffic(512, ranks, 4, 1, 4, 2, 8, 8, 2, 8)}


def half_precision(ranks):
    """Errors against the same weights in float64: over ranks, and of one process."""
    case = Case(tokens=96, options={"temperature": 0.7})
    model, ids = make(case, torch.bfloat16)
    model.focus.watch = in_turn(ranks, 96)
    found = prefill_in_parallel(model, ids, keep_cache=False).last.double()
    with torch.no_grad():
        alone = model(input_ids=ids, use_cache=False).logits[:, -1].double()
        exact = model.double()(input_ids=ids, use_cache=False).logits[:, -1]
    return {"error": float((found - exact).abs().max()), "alone": float((alone - exact).abs().max())}


def main(rank: int, ranks: int, folder: Path) -> None:
    found = {name: run(case) for name, case in CASES.items()}
    found["traffic"] = traffic(ranks)
    found["half precision"] = half_precision(ranks)
    if rank == 0:
        (folder / f"slices-{ranks}.json").write_text(json.dumps(found))
