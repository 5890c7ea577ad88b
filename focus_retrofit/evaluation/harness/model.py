"""lm_eval's model type `focus`: a Hugging Face model with Focus attention, or with what it is compared with."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import fields
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils_hf import get_dtype
from torch import Tensor
from tqdm.auto import tqdm

from focus_kernels import FocusError

from ...config import FocusConfig
from ...positions import positions_of
from ..methods import Method, attending, parse_methods
from .shared import Request, answer_logits, share_prompts

Answer = tuple[float, bool]
OWNER = "focus_retrofit"  # under this name a cache of answers says whose they are
PASSED_ON = {  # options of HFLM that do not concern loading, which is done here
    "add_bos_token",
    "batch_size",
    "chat_template_args",
    "enable_thinking",
    "logits_cache",
    "max_batch_size",
    "max_length",
    "mixed_precision_dtype",
    "prefix_token_id",
    "softmax_dtype",
    "think_end_token",
    "truncation",
}
logger = logging.getLogger(__name__)


@register_model("focus")
class FocusLM(HFLM):  # type: ignore[misc]
    """pretrained: what `load_pretrained` takes, or a retrofitted model with its tokenizer. adapter: what `load_adapter`
    takes; without one, routers are untrained. Options of FocusConfig go by their names. method: 'focus', 'full',
    'window', 'focus:2', ...: how to attend, as of `focus-retrofit eval`."""

    def __init__(
        self,
        pretrained: Any,
        adapter: str | None = None,
        method: str = "focus",
        tokenizer: Any = None,
        dtype: Any = "float32",
        device: str | None = None,
        focus_backend: str = "auto",
        trust_remote_code: bool = False,
        device_map: Any = None,
        **options: Any,
    ):
        given = {field.name: options.pop(field.name) for field in fields(FocusConfig) if field.name in options}
        unknown = sorted(set(options) - PASSED_ON)
        if unknown:
            known = sorted(PASSED_ON | {field.name for field in fields(FocusConfig)})
            raise FocusError(f"model type focus has no option {', '.join(unknown)}; it has {', '.join(known)}")
        methods = parse_methods(method)
        if len(methods) != 1:
            raise FocusError(f"method={method!r} names {len(methods)} methods: give one, and run lm_eval once for each")
        self.method: Method = methods[0]
        if isinstance(pretrained, str):
            self.source = {"pretrained": pretrained, "adapter": adapter}
            loading = {"dtype": get_dtype(dtype), "trust_remote_code": trust_remote_code}
            loading |= {"device_map": device_map} if device_map else {}
            pretrained, tokenizer = _load(pretrained, adapter, given, focus_backend, device, loading)
        elif not hasattr(pretrained, "focus") or tokenizer is None:
            raise FocusError("a model given as an object must be retrofitted, and come with its tokenizer")
        elif adapter or given:
            raise FocusError("a model given as an object has its adapter and configuration: leave these options out")
        else:
            self.source = {"pretrained": pretrained.config.name_or_path, "adapter": None}
        super().__init__(pretrained=pretrained, tokenizer=tokenizer, **options)

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, **options: Any
    ) -> list[Answer]:
        """Methods that have a cache read a prompt once that reaches beyond the window and has several answers."""
        cached = self.method.kind != "baseline" and self.method.name != "soft"
        window = self.model.focus.config.window
        shared = share_prompts(requests, window + 1, self.max_length) if cached else []
        found: dict[int, Answer] = {}
        with attending(self.model, *self.method):
            for numbers in tqdm(shared, desc="prompts with several answers", disable=disable_tqdm or not shared):
                found |= zip(numbers, self._answers([requests[n] for n in numbers]), strict=True)
            others = [n for n in range(len(requests)) if n not in found]
            plain = super()._loglikelihood_tokens([requests[n] for n in others], disable_tqdm, **options)
        found |= zip(others, plain, strict=True)
        return [found[n] for n in range(len(requests))]

    def _answers(self, requests: list[Request]) -> list[Answer]:
        """Of requests with one prompt: log-likelihoods, and whether each of an answer's tokens is the likeliest."""
        batch = self.batch_size if isinstance(self.batch_size, int) else len(requests)
        with torch.inference_mode(), self._precision():
            logits = answer_logits(self.model, requests[0][1], [answer for _, _, answer in requests], batch)
        found = []
        for (texts, _, answer), rows in zip(requests, logits, strict=True):
            logs, wanted = rows.log_softmax(-1, dtype=self.softmax_dtype), torch.tensor(answer, device=rows.device)
            score = float(logs.gather(1, wanted[:, None]).sum())
            found.append((score, bool((logs.argmax(-1) == wanted).all())))
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, found[-1])
        return found

    def generate_until(self, *args: Any, **options: Any) -> Any:
        if self.method.kind == "baseline" or self.method.name == "soft":
            raise FocusError(f"method {self.method} cannot generate, it has no cache: use focus or full for this task")
        with attending(self.model, *self.method):
            return super().generate_until(*args, **options)

    def _model_call(self, inps: Tensor, **options: Any) -> Tensor:
        """Logits [B, T, V] without a cache: nothing is decoded here, and not every method has one."""
        with torch.no_grad(), self._precision():
            return self.model(inps, use_cache=False, **options).logits

    def _precision(self) -> Any:
        lower = self.mixed_precision_dtype
        return torch.autocast(self.device.type, dtype=lower, enabled=lower is not None)

    def identity(self) -> dict[str, Any]:
        """All that the answers depend on besides the base model's weights."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.focus.tensors().items()):
            digest.update(name.encode() + tensor.detach().cpu().float().numpy().tobytes())
        return {
            **self.source,
            "method": str(self.method),
            "focus": self.model.focus.config.to_dict(),
            "routers": digest.hexdigest(),
            "dtype": str(self.model.dtype),
            **({"positions": extended} if (extended := positions_of(self.model)) else {}),
        }

    def get_model_info(self) -> dict[str, Any]:
        return {**super().get_model_info(), **self.identity()}

    def set_cache_hook(self, cache_hook: Any) -> None:
        """lm_eval finds cached answers by their prompts alone: another adapter's or method's would pass for ours."""
        super().set_cache_hook(cache_hook)
        answers = cache_hook.dbdict
        if answers is None:
            return
        ours = json.dumps(self.identity(), sort_keys=True)
        if (OWNER in answers or len(answers)) and answers.get(OWNER) != ours:
            raise FocusError(
                f"the cache {answers.filename} holds answers of another model, adapter or method: choose another path, "
                "or delete it"
            )
        answers[OWNER] = ours


def _load(
    name: str, adapter: str | None, given: dict[str, Any], backend: str, device: str | None, loading: dict[str, Any]
) -> tuple[Any, Any]:
    """A retrofitted model and its tokenizer; untrained routers are balanced on a sample of the Python reference."""
    from ...commands.load import sample_windows
    from ...models import load_pretrained
    from ...surgery import load_adapter, retrofit

    model: Any
    model, tokenizer = load_pretrained(name, **loading)
    if "device_map" not in loading:
        there = torch.cuda.is_available()  # lm_eval asks for cuda:0 where nothing is said
        model.to("cpu" if (device or "cuda").startswith("cuda") and not there else device or "cuda")
    if adapter is not None:
        return load_adapter(model, adapter, backend=backend, changes=given), tokenizer
    config = FocusConfig(**given)
    retrofit(model, config, backend=backend)
    logger.warning("no adapter: routers are untrained, and balanced on a sample text")
    if config.balance == "potentials":
        model.focus.balance(sample_windows(tokenizer)[0].to(model.device))
    return model, tokenizer
