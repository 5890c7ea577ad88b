"""Answers to one long prompt: it is read once, into a cache, and each answer goes on from there."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...streaming import prefill

Request = tuple[Any, list[int], list[int]]  # texts, tokens of the prompt and of the answer


def share_prompts(requests: Sequence[Request], longer_than: int, at_most: int) -> list[list[int]]:
    """Numbers of the requests that share a prompt of more than `longer_than` tokens, prompt by prompt; not where one is
    longer than the `at_most` tokens that the model takes."""
    found: dict[tuple[int, ...], list[int]] = {}
    for number, (_, prompt, _) in enumerate(requests):
        if len(prompt) > longer_than:
            found.setdefault(tuple(prompt), []).append(number)
    longest = {prompt: max(len(requests[n][2]) for n in numbers) for prompt, numbers in found.items()}
    return [
        numbers
        for prompt, numbers in found.items()
        if len(numbers) > 1 and len(prompt) + longest[prompt] - 1 <= at_most
    ]


def answer_logits(model: Any, prompt: list[int], answers: Sequence[list[int]], batch: int) -> list[Tensor]:
    """Logits [n, V] at the n tokens of each answer, given the prompt and those before; `batch` answers at a time."""
    tokens = torch.tensor([prompt], device=model.device)
    cache = prefill(model, tokens[:, :-1], progress=False).cache
    found: list[Tensor] = []
    for begin in range(0, len(answers), batch):
        some = answers[begin : begin + batch]
        own = cache if begin + batch >= len(answers) else copy.deepcopy(cache)
        own.batch_repeat_interleave(len(some))
        # what pads an answer comes after it, so it sees none of that
        inputs = pad_sequence([torch.tensor([prompt[-1], *answer[:-1]]) for answer in some], batch_first=True)
        logits = model(inputs.to(model.device), past_key_values=own, use_cache=True).logits
        found += [row[: len(answer)] for row, answer in zip(logits, some, strict=True)]
    return found
