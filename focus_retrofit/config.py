"""What a retrofit is: every choice of the method in one checked, serialisable place."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from focus_kernels.errors import FocusError

Balance = Literal["potentials", "sinkhorn", "softmax"]
Gate = Literal["log", "multiplicative"]


def option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class FocusConfig:
    """The choices of a retrofit, named as in the method's description; checked when made."""

    num_groups: int = option(8, "groups (centroids) per layer, K")
    top_k: int = option(2, "groups each query looks into, 1..num_groups; num_groups is full attention")
    layer_top_k: dict[int, int] | None = option(
        None, "layers that look into another number of groups than top_k, by their numbers: '{\"17\": 4}'"
    )
    match: str = option(
        "probe", "which distant keys a query sees: 'probe' (first group among the query's) or 'share' (any in common)"
    )
    window: int = option(128, "nearest tokens that are always visible")
    sinks: int = option(4, "first tokens that are visible to all; at most window")
    group_dim: int = option(16, "size of the projection in which tokens meet the centroids")
    tau: float = option(0.1, "temperature of the group scores")
    balance: Balance = option(
        "potentials",
        "what keeps groups balanced: 'potentials' (learned offsets, causal), 'sinkhorn' (the paper's: sees the future, "
        "not for generation) or 'softmax' (nothing)",
    )
    balance_decay: float = option(
        0.9,
        "how much of the saved potentials stays with each training batch (which is routed by its own), 0..1",
    )
    sinkhorn_rounds: int = option(10, "rounds of Sinkhorn normalisation for balance='sinkhorn'")
    gate: Gate = option("log", "training gate on distant pairs: 'log' (adds log of the overlap) or 'multiplicative'")
    gate_strength: float = option(5.0, "slope of the multiplicative gate's sigmoid")
    explore: int | None = option(
        None,
        "groups per query whose pairs get a gradient in hard training: top_k (sparse cost) to num_groups (sees what it "
        "misses); None is num_groups",
    )
    temperature: float | str | None = option(
        None,
        "focal temperature: None (1), a number, 'learned' (one per layer), 'heads' (learned, one per query head) or "
        "'input' (from each token's state)",
    )
    temperature_scope: str = option("distant", "pairs that feel the temperature: 'distant' or 'all'")
    temperature_min: float = option(0.25, "lower clip of a learned temperature")
    temperature_max: float = option(4.0, "upper clip of a learned temperature")
    layers: str | list[int] = option(
        "all",
        "layers to retrofit: 'all' (with full attention), a list of numbers, or slices such as '4:' or '0,2:10:2'",
    )
    min_length: int | str = option(
        0, "tokens at positions below it attend densely; 'auto' measures where Focus starts to win on this machine"
    )

    def __post_init__(self) -> None:
        if isinstance(self.layers, Iterable) and not isinstance(self.layers, str):
            self.layers = list(self.layers)
        self._check_sizes()
        self._check_layer_top_k()
        self._check_choices()
        self._check_temperature()
        parse_layers(self.layers)

    def _check_sizes(self) -> None:
        for name, least in (
            ("num_groups", 1),
            ("top_k", 1),
            ("window", 0),
            ("sinks", 0),
            ("group_dim", 1),
            ("sinkhorn_rounds", 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise FocusError(f"{name} is {value!r}; it must be a whole number, at least {least}")
        if self.top_k > self.num_groups:
            raise FocusError(f"top_k is {self.top_k} but num_groups is {self.num_groups}; use top_k <= num_groups")
        if self.explore is not None and not (
            isinstance(self.explore, int) and self.top_k <= self.explore <= self.num_groups
        ):
            raise FocusError(
                f"explore is {self.explore!r}; it must be from top_k ({self.top_k}) to num_groups ({self.num_groups}), "
                "or None for all"
            )
        if not isinstance(self.balance_decay, int | float) or not 0 <= self.balance_decay < 1:
            raise FocusError(f"balance_decay is {self.balance_decay!r}; it must be at least 0 and below 1")
        if self.sinks > self.window:
            raise FocusError(f"sinks is {self.sinks} but window is {self.window}; use sinks <= window")
        for name in ("tau", "gate_strength", "temperature_min", "temperature_max"):
            value = getattr(self, name)
            if not _positive(value):
                raise FocusError(f"{name} is {value!r}; it must be a positive number")
        if self.min_length != "auto" and not (
            isinstance(self.min_length, int) and not isinstance(self.min_length, bool) and self.min_length >= 0
        ):
            raise FocusError(f"min_length is {self.min_length!r}; give a number of tokens (0 for never) or 'auto'")

    def _check_layer_top_k(self) -> None:
        given = self.layer_top_k
        if given is None:
            return
        try:
            found = {int(layer): int(k) for layer, k in given.items()}
            wrong = any(isinstance(k, bool) or k != found[int(layer)] for layer, k in given.items())
        except (AttributeError, TypeError, ValueError):
            found, wrong = {}, True
        if wrong or any(layer < 0 or not 1 <= k <= self.num_groups for layer, k in found.items()):
            raise FocusError(
                f"layer_top_k is {given!r}; give layers' numbers and their groups per query, from 1 to num_groups "
                f"({self.num_groups}), such as {{17: {min(4, self.num_groups)}}}"
            )
        self.layer_top_k = dict(sorted(found.items())) or None

    def _check_choices(self) -> None:
        for name, choices in (
            ("match", ("probe", "share")),
            ("balance", ("potentials", "sinkhorn", "softmax")),
            ("gate", ("log", "multiplicative")),
            ("temperature_scope", ("distant", "all")),
        ):
            if getattr(self, name) not in choices:
                raise FocusError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(map(repr, choices))}")

    def _check_temperature(self) -> None:
        if isinstance(self.temperature, str):
            if self.temperature not in ("learned", "heads", "input"):
                raise FocusError(
                    f"temperature is {self.temperature!r}; choose None, a positive number, 'learned', 'heads' or "
                    "'input'"
                )
        elif self.temperature is not None and not _positive(self.temperature):
            raise FocusError(f"temperature is {self.temperature!r}; it must be positive (1 is the pretrained softmax)")
        if not self.temperature_min <= 1 <= self.temperature_max:
            raise FocusError(
                f"temperature_min {self.temperature_min} and temperature_max {self.temperature_max} must enclose 1, "
                "where learning starts"
            )
        if self.temperature == "input" and self.temperature_scope != "all":
            raise FocusError(
                "temperature='input' scales whole queries: use it with temperature_scope='all'; for distant pairs "
                "only there are temperature='learned' and 'heads'"
            )

    def k_of(self, layer: int) -> int:
        """Groups that a query looks into in this layer."""
        return (self.layer_top_k or {}).get(layer, self.top_k)

    @property
    def leaks(self) -> bool:
        """Whether routing of a token depends on later tokens; then there is no generation."""
        return self.balance == "sinkhorn"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FocusConfig:
        """Unknown keys, as a newer version may write them, are left out with a warning that names them."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            warnings.warn(
                f"ignored unknown Focus options {', '.join(unknown)}: written by a newer version of focus_retrofit?",
                stacklevel=2,
            )
        return cls(**{name: value for name, value in values.items() if name in known})

    @classmethod
    def from_json(cls, text: str) -> FocusConfig:
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise FocusError(f"not a Focus configuration: {error}") from None
        if not isinstance(values, dict):
            raise FocusError(f"not a Focus configuration: expected an object of options, got {type(values).__name__}")
        return cls.from_dict(values)


def shown_k(options: Mapping[str, Any]) -> str:
    """Groups per query of a configuration's options, for people: '2', or '1 to 8' where layers differ."""
    found = {options["top_k"], *(options.get("layer_top_k") or {}).values()}
    return str(min(found)) if len(found) == 1 else f"{min(found)} to {max(found)}"


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def parse_layers(spec: str | list[int]) -> list[int | slice] | None:
    """The numbers and slices a `layers` option names; None is all of them."""
    if spec == "all":
        return None
    parts: list[int | slice] = []
    items: list[Any] = spec.split(",") if isinstance(spec, str) else list(spec)
    for part in items:
        try:
            if isinstance(part, str) and ":" in part:
                ends: list[Any] = [int(x) if x.strip() else None for x in part.split(":")]
                parts.append(slice(*ends))
            else:
                parts.append(int(part))
        except (TypeError, ValueError):
            raise FocusError(
                f"layers is {spec!r}; give 'all', a list of numbers, or numbers and slices such as '0,4:8,12::2'"
            ) from None
    if not parts:
        raise FocusError("layers is empty: name at least one layer, or 'all'")
    return parts


def pick_layers(spec: str | list[int], count: int) -> list[int] | None:
    """Layer numbers below `count` that the option names, in order; negative ones count from the end. None is all."""
    parts = parse_layers(spec)
    if parts is None:
        return None
    picked: set[int] = set()
    for part in parts:
        if isinstance(part, slice):
            picked.update(range(count)[part])
        elif -count <= part < count:
            picked.add(part % count)
        else:
            raise FocusError(f"layers names layer {part}, but the model has {count} (0..{count - 1})")
    if not picked:
        raise FocusError(f"layers {spec!r} picks none of the model's {count} layers")
    return sorted(picked)
