"""Text token by token: what `generate` and `chat` show, and how far two continuations agree."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import TextStreamer

from .streaming import prefill

Show = Callable[[str], None]


class Shown(TextStreamer):
    """Hands text to a function as soon as it is certain, words whole."""

    def __init__(self, tokenizer: Any, show: Show):
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.show = show

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text:
            self.show(text)


@dataclass(frozen=True)
class Continuation:
    """What a model wrote after a prompt, and how long it took to the first token and after it."""

    text: str
    ids: list[int]
    prompt_tokens: int
    first_seconds: float
    seconds: float

    @property
    def tokens_per_second(self) -> float | None:
        """After the first token."""
        after = self.seconds - self.first_seconds
        return (len(self.ids) - 1) / after if len(self.ids) > 1 and after > 0 else None


def continue_text(
    model: Any,
    tokenizer: Any,
    ids: Tensor,
    *,
    show: Show = lambda text: None,
    seed: int = 0,
    chunk: int | None = None,
    cache: Any = None,
    **options: Any,
) -> Continuation:
    """`generate` from a prompt [1, T]; options are those of `model.generate` (max_new_tokens, do_sample, ...).

    A prompt longer than `chunk` is read in chunks first, under a progress bar, into `cache` or one of the model's.
    """
    clock = _Clock(tokenizer, show)
    torch.manual_seed(seed)
    if chunk is not None and ids.shape[1] > chunk:
        cache = prefill(model, ids[:, :-1], cache=cache, chunk=chunk).cache
    if cache is not None:
        options["past_key_values"] = cache
    given = {"input_ids": ids.to(model.device), "attention_mask": torch.ones_like(ids).to(model.device)}
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    with torch.inference_mode():
        out = model.generate(**given, streamer=clock, pad_token_id=pad, **options)
    new = out[0, ids.shape[1] :].tolist()
    end = time.perf_counter()
    text = tokenizer.decode(new, skip_special_tokens=True)
    return Continuation(text, new, ids.shape[1], clock.first - clock.start, end - clock.start)


class _Clock(Shown):
    """Also notes when the first token came; the prompt comes before it."""

    def __init__(self, tokenizer: Any, show: Show):
        super().__init__(tokenizer, show)
        self.start, self.first, self.puts = time.perf_counter(), 0.0, 0

    def put(self, value: Any) -> None:
        self.puts += 1
        if self.puts == 2:
            self.first = time.perf_counter()
        super().put(value)


def common_tokens(a: list[int], b: list[int]) -> int | None:
    """How many first tokens two continuations share; None if they are the same to the end."""
    if a == b:
        return None
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def compare_texts(model: Any, tokenizer: Any, ids: Tensor, **options: Any) -> dict[str, Any]:
    """The base model's continuation of a prompt and that with Focus, as data."""
    show_base, show_focus = options.pop("show_base", None), options.pop("show_focus", None)
    chunk, cache = options.pop("chunk", None), options.pop("cache", None)
    with model.focus.disabled():
        base = continue_text(model, tokenizer, ids, show=show_base or (lambda text: None), **options)
    show_focus = show_focus or (lambda text: None)
    focused = continue_text(model, tokenizer, ids, show=show_focus, chunk=chunk, cache=cache, **options)
    return {
        "prompt": tokenizer.decode(ids[0], skip_special_tokens=True),
        "prompt_tokens": ids.shape[1],
        "base": base.text,
        "focus": focused.text,
        "new_tokens": len(focused.ids),
        "same": common_tokens(base.ids, focused.ids),
        "seconds": {"base": [base.first_seconds, base.seconds], "focus": [focused.first_seconds, focused.seconds]},
    }
