"""`model.focus`: the adapter's tensors, its switches, and what it did."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from focus_kernels import FocusError

from .adapters import Shelved, add_adapter, set_adapter
from .adjunct import Adjunct
from .cache import FocusCache
from .config import shown_k
from .discover import attention_layers
from .latent import is_latent
from .layer import ATTRIBUTE, Layer
from .router import Router, load_routers, router_tensors
from .stats import Report, Stats, describe

MODES = ("hard", "soft", "dense")


class Focus(Adjunct):
    """Controls the Focus attention of one model; made by `retrofit`."""

    def __init__(self, model: PreTrainedModel, backend: str, adapter: Shelved):
        super().__init__()
        self.backend = backend
        self.enabled = True
        self.name = "default"  # of the adapter at work
        self.shelf: dict[str, Shelved] = {}  # the others
        self.watch: Callable[[Any], Any] | None = None  # is shown what each layer is given, an attention.Seen
        self.rival: Any = None  # a rivals.Rival that attends instead
        self.parallel: Any = None  # a parallel.SequenceParallel, while tokens are spread over processes
        self.rivals: dict[Any, Any] = {}  # methods that have learned, by name: see evaluation.prepare
        self._mode = "hard"
        self._model = ref(model)
        self._layers: list[Layer] = []
        self._trained: set[str] = set()  # base parameters that had a gradient before
        self._names = ("", "")  # attention implementations: the base's, and ours over it
        self._may_learn = True  # gradients were on in the last forward pass, if there was one
        self._hook = model.register_forward_pre_hook(self._begin)
        for found in attention_layers(model):
            layer = Layer(found.index, self, local=found.local, latent=is_latent(found.module))
            layer.hook = found.module.register_forward_pre_hook(layer.before, with_kwargs=True)
            setattr(found.module, ATTRIBUTE, layer)
            self._layers.append(layer)
        self.put(adapter)

    def put(self, adapter: Shelved) -> None:
        """Let an adapter do the work."""
        self.config, self.routers, self.dense_below = adapter.config, adapter.routers, adapter.dense_below
        self._may_learn = True
        for layer in self._layers:
            layer.router = dict(self.routers.items()).get(str(layer.index))  # type: ignore[assignment]
            layer.stats = Stats()

    @property
    def adapters(self) -> list[str]:
        """Names of all adapters, the one at work first."""
        return [self.name, *self.shelf]

    def add_adapter(self, name: str, source: Any, *, seed: int = 0, **hub: Any) -> None:
        """Keep one more adapter for this base model: a directory, a name on the hub, or a FocusConfig to train anew."""
        add_adapter(self, name, source, seed, **hub)

    def set_adapter(self, name: str) -> None:
        """Route with another of the `adapters`; the base model stays as it is. Caches begin anew."""
        set_adapter(self, name)

    def delete_adapter(self, name: str) -> None:
        """Forget an adapter that is not at work."""
        if name not in self.shelf:
            place = "is at work: set another first" if name == self.name else f"is not one of {self.adapters}"
            raise FocusError(f"cannot delete adapter {name!r}: it {place}")
        del self.shelf[name]

    def __deepcopy__(self, memo: dict[int, Any]) -> Focus:
        """As part of its model: the copy controls the copied model."""
        model = self.model
        if id(model) not in memo:
            raise FocusError("model.focus cannot be copied by itself: copy the model")
        copied = memo[id(self)] = type(self).__new__(type(self))
        state = {name: value for name, value in vars(self).items() if name != "_model"}
        vars(copied).update(copy.deepcopy(state, memo))
        copied._model = ref(memo[id(model)])
        return copied

    @property
    def model(self) -> PreTrainedModel:
        model = self._model()
        if model is None:
            raise FocusError("the model of this controller is gone: it was deleted, or unloaded")
        return model

    @property
    def mode(self) -> str:
        """'hard': routing as served. 'soft': the dense training gate. 'dense': attention as in the base, routed for
        `watch` alone."""
        return self._mode

    @mode.setter
    def mode(self, value: str) -> None:
        if value not in MODES:
            raise FocusError(f"mode is {value!r}; choose one of {', '.join(map(repr, MODES))}")
        self._mode = value

    def only_serves(self) -> bool:
        """Nobody learns from, watches or replaces what the layers do."""
        if self.watch is not None or self.rival is not None or self.parallel is not None or self.backend != "auto":
            return False
        return self._mode == "hard" and not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))

    @property
    def layer_indices(self) -> list[int]:
        """The layers that Focus took; the others are as they were."""
        return [layer.index for layer in self._layers if layer.router is not None]

    @property
    def top_k(self) -> float:
        """Groups per query, the mean over layers."""
        layers = self.layer_indices
        return sum(map(self.config.k_of, layers)) / len(layers)

    def router(self, index: int) -> Router:
        """The router of a layer, by the layer's number."""
        if index not in self.layer_indices:
            raise FocusError(f"layer {index} is not retrofitted; these are: {self.layer_indices}")
        router = self.routers[str(index)]
        assert isinstance(router, Router)
        return router

    def trainable_parameters(self) -> list[nn.Parameter]:
        """All that training changes: projections, centroids, and temperatures where they are learned."""
        return list(self.routers.parameters())

    def num_parameters(self) -> int:
        """How many numbers `trainable_parameters` holds."""
        return sum(p.numel() for p in self.trainable_parameters())

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the adapter by name, 'layers.<number>.<name>': what is saved."""
        return router_tensors(self.routers)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors of `tensors()` in place; names and shapes must be the same."""
        load_routers(self.routers, tensors)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """The base model, bit for bit, inside the `with`."""
        before = self.enabled
        self._switch(False)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, enabled: bool) -> None:
        self.enabled = enabled
        self.model.set_attn_implementation(self._names[enabled])

    def unload(self) -> PreTrainedModel:
        """Take Focus out: no hook, no attribute, no frozen flag is left. Returns the model as it was."""
        model = self.model
        self._switch(False)
        self._hook.remove()
        for module in model.modules():
            layer = vars(module).pop(ATTRIBUTE, None)
            if layer is not None and layer.hook is not None:
                layer.hook.remove()
        self.unfreeze()
        del model.focus
        return model

    @torch.no_grad()
    def balance(self, *texts: Tensor, attention_mask: Tensor | None = None) -> None:
        """Fit the potentials on sample texts (input_ids [B, T] each), so that groups share the tokens evenly.

        An untrained router leaves most tokens in few groups; layers are fitted in order, each on what it really sees.
        """
        if self.config.balance != "potentials":
            raise FocusError(f"balance={self.config.balance!r} has no potentials to fit; use balance='potentials'")
        routers = [self.router(index) for index in self.layer_indices]
        for router in routers:
            router.fitting, router.fitted = True, 0
        try:
            for input_ids in texts:
                self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        finally:
            for router in routers:
                router.fitting = False

    def new_cache(self, **kwargs: Any) -> FocusCache:
        """An empty cache; options as of FocusCache."""
        return FocusCache(self.model, **kwargs)

    def report(self) -> Report:
        """Per layer: how it was routed in the last forward pass, and the share of pairs really computed."""
        lines = []
        for layer in self._layers:
            if layer.router is None:
                layer.stats.routing = "own window" if layer.local else "dense (not selected)"
                temperature = None
            else:
                value = layer.router.layer_temperature()
                temperature = None if value is None else float(torch.as_tensor(value).detach().mean())
            lines.append(describe(layer.index, layer.stats, self.config, temperature))
        return Report(self.mode, self.enabled, self.dense_below, lines)

    def groups_seen(self, index: int) -> Tensor:
        """First group of each token [B, T] in a layer's last whole-sequence call."""
        return self.all_groups_seen(index)[..., 0]

    def all_groups_seen(self, index: int) -> Tensor:
        """All groups of each token [B, T, k], best first."""
        layer = next((layer for layer in self._layers if layer.index == index), None)
        groups = None if layer is None else layer.stats.known().groups
        if groups is None:
            raise FocusError(f"layer {index} has not been run yet, or is not retrofitted")
        return groups

    def save_pretrained(self, directory: str | os.PathLike[str], results: Mapping[str, Any] | None = None) -> Path:
        """Write the adapter (config, tensors, card) to a directory, all or nothing; `results` go on the card."""
        from .adapter import save_adapter

        return save_adapter(self.model, directory, results)

    def push_to_hub(
        self, repo_id: str, *, private: bool | None = None, results: Mapping[str, Any] | None = None
    ) -> str:
        """Upload the adapter to the Hugging Face hub; returns its address."""
        from .hub import upload

        return upload(self.model, repo_id, private=private, results=results)

    def extra_repr(self) -> str:
        config = self.config
        return (
            f"mode={self.mode!r}, K={config.num_groups}, k={shown_k(vars(config))}, match={config.match!r}, "
            f"window={config.window}, sinks={config.sinks}, layers={len(self.layer_indices)}, "
            f"parameters={self.num_parameters()}"
        )

    def _begin(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        """Forward pre-hook of the model: a new batch has potentials of its own."""
        begun, self._may_learn = self._may_learn, torch.is_grad_enabled()
        if begun or self._may_learn:  # else nothing has changed since, and a token would feel the time
            for router in self.routers.values():
                router.begin()  # type: ignore[operator]

    def unfreeze(self) -> None:
        """Base parameters train again, those that did before the retrofit: for full fine-tuning."""
        for name, parameter in self.model.named_parameters():
            if name in self._trained:
                parameter.requires_grad_(True)

    def freeze(self) -> None:
        """No base parameter trains any more; routers do."""
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and not name.startswith("focus."):
                self._trained.add(name)
                parameter.requires_grad_(False)
