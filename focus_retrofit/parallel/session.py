"""`sequence_parallel`: inside it a model runs on a slice of the tokens, and attends to those of all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from focus_kernels import FocusError
from focus_kernels.problem import check_problem

from ..hard import cooled
from ..latent import is_latent
from ..layer import Layer
from .attention import SliceCall, attend_slice
from .checks import check_input, check_model
from .exchange import Link
from .slices import Slices
from .traffic import Traffic

if TYPE_CHECKING:
    from ..controller import Focus
    from ..router import Routing


@dataclass(frozen=True)
class Kept:
    """A layer's keys and values of this rank's tokens, [B, H, n, D], with their groups [B, n, k] where it has some."""

    key: Tensor
    value: Tensor
    groups: Tensor | None


@dataclass
class SequenceParallel:
    """What the ranks agree on while a model runs on slices; attends for its layers (`focus.parallel`)."""

    focus: Focus
    link: Link
    keep: bool = False
    slices: Slices | None = None  # of the last forward pass
    kept: dict[int, Kept] = field(default_factory=dict)  # by layer
    latent: list[int] = field(default_factory=list)  # layers whose caches hold something else than keys

    @property
    def traffic(self) -> Traffic:
        """Bytes that this rank sent so far."""
        return self.link.traffic

    def begin(self, model: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Forward pre-hook of the model: the ranks tell each other how many tokens they have, and positions follow."""
        tokens = check_input(model, args, kwargs)  # [B, n] or [B, n, d]
        batch, held = tokens.shape[:2]
        sizes = [torch.zeros(2, dtype=torch.long, device=tokens.device) for _ in range(self.link.ranks)]
        dist.all_gather(sizes, torch.tensor([batch, held], device=tokens.device), group=self.link.group)
        counts = [size.tolist() for size in sizes]
        if len({rows for rows, _ in counts}) > 1 or any(count < 1 for _, count in counts):
            raise FocusError(f"ranks were given [batch, tokens] {counts}: one batch size, and a token each, are needed")
        starts = [0]
        for _, count in counts:
            starts.append(starts[-1] + count)
        self.slices = Slices(tuple(starts), self.link.rank, batch)
        self.kept, self.latent = {}, []
        place = torch.arange(self.slices.start, self.slices.start + held, device=tokens.device).expand(batch, -1)
        given = kwargs.get("position_ids")
        if given is not None and not torch.equal(given.to(place).expand_as(place), place):
            raise FocusError(
                f"rank {self.link.rank} holds positions {self.slices.start}..{starts[self.link.rank + 1] - 1}, which "
                "position_ids do not say: leave them out; packed documents cannot be sliced"
            )
        return args, {**kwargs, "position_ids": place, "use_cache": False}

    def attend(
        self,
        layer: Layer,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        routed: Routing,
        options: dict[str, Any],
    ) -> Tensor:
        """A Focus layer: query [B, Hq, n, D], key and value of this rank's tokens -> [B, Hq, n, Dv]."""
        focus = self.focus
        if torch.is_grad_enabled() and routed.logits.requires_grad:
            raise FocusError("sequence-parallel attention has no gradient: call the model under torch.no_grad()")
        if routed.layout.documents is not None:
            raise FocusError("padding and packed documents cannot be sliced: give each rank whole rows of real tokens")
        config, slices = focus.config, self._slices()
        per_token = routed.per_token
        if per_token is not None:  # early queries have none
            place = torch.arange(slices.start, slices.start + slices.held, device=per_token.device)
            per_token = per_token.masked_fill(place < focus.dense_below, 1)
        shape = {"num_groups": config.num_groups, "window": config.window, "sinks": config.sinks}
        query = cooled(query, per_token)
        return self._run(layer, module, query, key, value, routed.groups, {**options, **shape}, focus.dense_below)

    def attend_unrouted(
        self, layer: Layer, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any
    ) -> Tensor:
        """A layer without groups -> [B, Hq, n, Dv]: its own window, or everything (as a single group)."""
        window = kwargs.get("sliding_window") if layer.local else self.focus.config.window + 1
        if not isinstance(window, int):
            raise FocusError(f"layer {layer.index} has a mask that is no sliding window: it cannot be sliced")
        if kwargs.get("dropout"):
            raise FocusError(f"layer {layer.index}: attention dropout has no place here: call model.eval()")
        scale = kwargs.get("scaling")
        options = {
            "scale": query.shape[3] ** -0.5 if scale is None else scale,
            "temperature": None,
            "softcap": kwargs.get("softcap"),
            "sink_logits": kwargs.get("s_aux"),
            "num_groups": 1,
            "window": window - 1,
            "sinks": 0,
        }
        groups = None if layer.local else torch.zeros(query.shape[0], query.shape[2], 1, device=query.device).long()
        return self._run(layer, module, query, key, value, groups, options)

    def _run(
        self,
        layer: Layer,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        groups: Tensor | None,
        options: dict[str, Any],
        everywhere: int = 0,
    ) -> Tensor:
        backend = options.pop("backend", "auto")
        problem = check_problem(
            q_heads=query.shape[1],
            head_size=query.shape[3],
            device=query.device,
            top_k=1 if groups is None else groups.shape[2],
            match="probe",
            **{"temperature_scope": "distant", **options},
        )
        if is_latent(module):
            self.latent.append(layer.index)
        elif self.keep:
            self.kept[layer.index] = Kept(key, value, groups)
        call = SliceCall(query, key, value, groups, problem, everywhere, backend)
        return attend_slice(call, self._slices(), self.link)

    def _slices(self) -> Slices:
        if self.slices is None:
            raise FocusError("call the model itself inside sequence_parallel: its parts do not know their positions")
        return self.slices


@contextmanager
def sequence_parallel(
    model: PreTrainedModel, process_group: Any = None, *, keep_cache: bool = False
) -> Iterator[SequenceParallel]:
    """Inside, every rank of the group calls the model on its slice of the tokens, in the order of ranks; attention is
    that of the whole sequence, and positions follow. For inference; keep_cache: for `gather_cache` afterwards."""
    check_model(model)
    if not (dist.is_available() and dist.is_initialized()):
        raise FocusError(
            "sequence_parallel needs torch.distributed: start the processes with torchrun, and call "
            "torch.distributed.init_process_group first"
        )
    focus: Focus = model.focus  # type: ignore[assignment]
    session = SequenceParallel(focus, Link(process_group, Traffic()), keep_cache)
    hook = model.register_forward_pre_hook(session.begin, with_kwargs=True)
    focus.parallel = session
    try:
        yield session
    finally:
        focus.parallel = None
        hook.remove()
