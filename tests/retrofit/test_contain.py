"""A token that breaks in a model breaks those that see it, and nobody else."""

from __future__ import annotations

import torch

from focus_retrofit import FocusCache, FocusConfig, retrofit
from tests.matrix import BY_NAME, VOCABULARY

IDS = torch.randint(2, VOCABULARY, (2, 120), generator=torch.Generator().manual_seed(4))
AT = 40  # of the first row
OPTIONS = {"num_groups": 4, "top_k": 1, "window": 8, "min_length": 0}


def broken_at(place):
    """A hook that makes one token's embedding NaN, counted over the calls of the model."""
    seen = [0]

    def hook(module, args, out):
        first, seen[0] = seen[0], seen[0] + out.shape[1]
        if first <= place < seen[0]:
            out = out.clone()
            out[0, place - first] = float("nan")
        return out

    return hook


def run(model, chunks, broken):
    """Logits and the first layer's output, over the chunks of one sequence."""
    found = []
    handles = [model.model.layers[0].register_forward_hook(lambda module, args, out: found.append(out))]
    if broken:
        handles.append(model.get_input_embeddings().register_forward_hook(broken_at(AT)))
    cache = FocusCache(model)
    try:
        with torch.no_grad():
            logits = [model(part, past_key_values=cache).logits for part in IDS.split(chunks, 1)]
    finally:
        for handle in handles:
            handle.remove()
    return torch.cat(logits, 1), torch.cat(found, 1)


def check(chunks):
    model = retrofit(BY_NAME["Llama"].make(), FocusConfig(**OPTIONS))
    (plain, _), (logits, first) = run(model, chunks, False), run(model, chunks, True)
    assert torch.equal(logits[0, :AT], plain[0, :AT])
    assert torch.equal(logits[1], plain[1])
    hurt = first.isnan().any(-1)
    assert not hurt[1].any()
    assert not hurt[0, :AT].any()
    assert hurt[0, AT : AT + 9].all()  # its window
    later = hurt[0, AT + 9 :]
    assert later.any()
    assert not later.all()  # those of other groups are as they were
    return hurt


def test_one_call_chunks_and_tokens_agree():
    whole, chunked = check([120]), check([30, 30, 60])
    decoded = check([60, *[1] * 60])
    assert torch.equal(whole, chunked)
    assert torch.equal(whole, decoded)
