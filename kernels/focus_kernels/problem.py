"""What one call asks for, checked once: every engine and backend reads it from here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import FocusError

MATCHES = ("probe", "share")
SCOPES = ("distant", "all")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Problem:
    """The checked options of one call (SPEC names), shared by all its sequences."""

    num_groups: int
    top_k: int
    window: int
    sinks: int
    match: str
    scale: float
    temperature: Tensor | None  # fp32, [] (per layer) or [Hq] (per query head); None is exactly 1
    temperature_scope: str
    softcap: float | None
    sink_logits: Tensor | None  # [Hq]

    @property
    def probes_one(self) -> bool:
        """Both match rules coincide when every token has one group."""
        return self.top_k == 1

    @property
    def needs_chunked(self) -> str | None:
        """Why the sorted engine cannot serve this call, if it cannot."""
        if self.match == "probe" and self.top_k > 1:
            return f"match='probe' with {self.top_k} groups per token"
        if self.temperature is not None and self.temperature_scope == "distant":
            return "a temperature with temperature_scope='distant'"
        return None

    def logit_scale(self, distant: bool) -> tuple[float, Tensor | None]:
        """(scale, per-head factor on the query) for pairs beyond the window, or within it."""
        felt = distant or self.temperature_scope == "all"
        return cooled_scale(self.scale, self.temperature if felt else None)


def cooled_scale(scale: float, temperature: float | Tensor | None) -> tuple[float, Tensor | None]:
    """A scale over a temperature, as (scale, per-head factor on the query)."""
    if temperature is None:
        return scale, None
    if isinstance(temperature, Tensor) and temperature.dim():
        return scale, temperature.detach().double().reciprocal()  # what it multiplies may have more digits than it
    return scale / float(temperature), None


def check_tensors(query: Tensor, key: Tensor, value: Tensor, groups: Tensor) -> None:
    """Shapes, dtypes and devices of the four tensors; query and key have the same length."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise FocusError(f"{name} must be [batch, heads, tokens, head size], got shape {list(tensor.shape)}")
        if tensor.dtype not in DTYPES:
            raise FocusError(f"{name} has dtype {tensor.dtype}; supported: {', '.join(map(str, DTYPES))}")
        if tensor.dtype != query.dtype or tensor.device != query.device:
            raise FocusError(
                f"{name} is {tensor.dtype} on {tensor.device}, query is {query.dtype} on {query.device}: "
                "convert them to one dtype and device"
            )
    batch, q_heads, tokens, size = query.shape
    if key.shape[0] != batch or key.shape[2] != tokens or key.shape[3] != size:
        raise FocusError(
            f"key {list(key.shape)} does not fit query {list(query.shape)}: only the head count may differ"
        )
    if value.shape[:3] != key.shape[:3]:
        raise FocusError(f"value {list(value.shape)} does not fit key {list(key.shape)}: only head sizes may differ")
    if key.shape[1] == 0 or q_heads % key.shape[1]:
        raise FocusError(f"{q_heads} query heads are not a multiple of {key.shape[1]} key heads")
    if groups.dim() != 3 or groups.shape[:2] != (batch, tokens) or groups.shape[2] == 0:
        raise FocusError(f"groups must be [{batch}, {tokens}, k] with k at least 1, got shape {list(groups.shape)}")
    if groups.dtype.is_floating_point or groups.dtype.is_complex or groups.dtype == torch.bool:
        raise FocusError(f"groups must hold integer ids, got {groups.dtype}")
    if groups.device != query.device:
        raise FocusError(f"groups are on {groups.device}, query on {query.device}: move them to one device")


def check_groups(groups: Tensor, num_groups: int) -> None:
    """Ids within range and distinct per token."""
    if num_groups < 1:
        raise FocusError(f"num_groups is {num_groups}; it must be at least 1")
    if groups.shape[-1] > num_groups:
        raise FocusError(f"{groups.shape[-1]} groups per token but num_groups is {num_groups}")
    if groups.numel() == 0:
        return
    low, high = (int(x) for x in torch.aminmax(groups))
    if low < 0 or high >= num_groups:
        raise FocusError(f"group id {low if low < 0 else high} is outside 0..{num_groups - 1}")
    if groups.shape[-1] > 1:
        ordered = groups.sort(-1).values
        same = ordered[..., 1:] == ordered[..., :-1]
        if bool(same.any()):
            where = same.nonzero()[0].tolist()
            raise FocusError(f"token {where[:-1]} lists group {int(ordered[tuple(where)])} twice; ids must be distinct")


def check_problem(
    *,
    q_heads: int,
    head_size: int,
    device: torch.device,
    top_k: int,
    num_groups: int,
    window: int,
    sinks: int,
    match: str,
    scale: float | None,
    temperature: float | Tensor | None,
    temperature_scope: str,
    softcap: float | None,
    sink_logits: Tensor | None,
) -> Problem:
    """The options of a call, each checked; tensors keep their gradient."""
    if match not in MATCHES:
        raise FocusError(f"match is {match!r}; choose one of {', '.join(MATCHES)}")
    if temperature_scope not in SCOPES:
        raise FocusError(f"temperature_scope is {temperature_scope!r}; choose one of {', '.join(SCOPES)}")
    if sinks < 0:
        raise FocusError(f"sinks is {sinks}; it must be at least 0")
    if window < sinks:
        raise FocusError(f"window is {window} but sinks is {sinks}: the window must cover the sinks (window >= sinks)")
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise FocusError(f"scale is {scale}; it must be a positive number")
    if softcap is not None and not (math.isfinite(softcap) and softcap > 0):
        raise FocusError(f"softcap is {softcap}; it must be a positive number, or None for a model without one")
    if sink_logits is not None and sink_logits.shape != (q_heads,):
        raise FocusError(f"sink_logits must be [{q_heads}], one per query head, got shape {list(sink_logits.shape)}")
    return Problem(
        num_groups=num_groups,
        top_k=top_k,
        window=window,
        sinks=sinks,
        match=match,
        scale=head_size**-0.5 if scale is None else float(scale),
        temperature=_check_temperature(temperature, q_heads, device),
        temperature_scope=temperature_scope,
        softcap=softcap,
        sink_logits=sink_logits,
    )


def _check_temperature(temperature: float | Tensor | None, q_heads: int, device: torch.device) -> Tensor | None:
    if temperature is None:
        return None
    if not isinstance(temperature, Tensor):
        if temperature == 1:
            return None
        temperature = torch.tensor(float(temperature), dtype=torch.float64)
    if temperature.numel() == 1:
        temperature = temperature.reshape(())
    elif temperature.shape != (q_heads,):
        raise FocusError(
            f"temperature must be one number or [{q_heads}], one per query head, got shape {list(temperature.shape)}"
        )
    lowest, highest = (float(x) for x in torch.aminmax(temperature.detach()))
    if not (lowest > 0 and math.isfinite(highest)):
        raise FocusError(f"temperature is {lowest}; it must be a positive number (1 is the pretrained softmax)")
    if not temperature.requires_grad and lowest == highest == 1:
        return None
    return temperature.to(device)
