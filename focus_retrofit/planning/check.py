"""The cost model against measured rows: rates are fitted on the short rows of a file, the long ones are predicted.

What is fitted is seconds per count of costs.py, none below zero, on relative errors. Full attention: in a kernel, its
pairs and a call; in a prefill, the matrix products and the pairs; in decoding, the weights (with all else that does not
grow) and the cache. Focus is predicted at those rates, with two more for what it adds: in kernel and prefill what it
moves and its calls, in decoding its calls and how much slower than full attention it reads a byte of its cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

from focus_kernels.errors import FocusError

from .cases import Case, make_case
from .costs import FOCUS_CALLS, LAYER_CALLS, Rates, causal_pairs, focus_work, projections_work, router_work
from .holding import NUMBER, cache_bytes
from .models import ModelFacts

FEWEST = 3  # lengths of a series: two to fit on, one to predict
Columns = dict[str, float]


@dataclass(frozen=True)
class Prediction:
    """A row: what was measured, and what the model says."""

    part: str
    setup: str
    tokens: int
    fitted: bool  # whether rates were fitted on this row
    full: float
    full_predicted: float
    focus: float
    focus_predicted: float
    memory: float | None = None  # of decode: Focus's cache over a full one
    memory_predicted: float | None = None

    @property
    def full_ratio(self) -> float:
        return self.full_predicted / self.full

    @property
    def focus_ratio(self) -> float:
        return self.focus_predicted / self.focus

    @property
    def speedup(self) -> float:
        return self.full / self.focus

    @property
    def speedup_predicted(self) -> float:
        return self.full_predicted / self.focus_predicted

    def to_dict(self) -> dict[str, Any]:
        names = ("full_ratio", "focus_ratio", "speedup", "speedup_predicted")
        return {**asdict(self), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class Check:
    """All predictions, and which rows there was too little to fit rates for."""

    predictions: list[Prediction]
    skipped: list[str]

    @property
    def worst(self) -> float:
        """The largest factor by which a row that was not fitted on is missed, either way."""
        ratios = [ratio for one in self.predictions if not one.fitted for ratio in (one.full_ratio, one.focus_ratio)]
        return max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)

    def to_dict(self) -> dict[str, Any]:
        rows = [one.to_dict() for one in self.predictions]
        return {"rows": rows, "skipped": self.skipped, "worst": self.worst}


def check_bench(
    rows: Iterable[Mapping[str, Any]],
    *,
    model: ModelFacts | None = None,
    fit_to: int | None = None,
    rates: Rates | None = None,
) -> Check:
    """Every row of benchmark files predicted. Rows of one part whose layers are of the same sizes share their rates,
    whatever the number of layers and groups; these are fitted on the rows up to `fit_to` tokens, by default on the
    shorter half of the lengths. With `rates` given, no row is used."""
    families: dict[Any, list[Case]] = {}
    for row in rows:
        if row["part"] in FULL:
            case = make_case(row, model)
            where = (row.get("device"), row.get("threads"))
            families.setdefault((case.part, replace(case.model, layers=0), case.number, where), []).append(case)
    if not families:
        raise FocusError(f"there are no rows of {', '.join(FULL)}: nothing to check the plan against")
    found, skipped = [], []
    for cases in families.values():
        cases.sort(key=lambda case: (case.tokens, case.setup))
        lengths = sorted({case.tokens for case in cases})
        if rates is not None:
            inverse = _inverse(rates)
            found += [_predict(case, False, inverse, inverse) for case in cases]
        elif len(lengths) < FEWEST:
            skipped.append(
                f"{cases[0].part}, {cases[0].setup}: too few lengths ({len(lengths)}) to fit rates on some and "
                f"predict others; measure {FEWEST} at least, or use rates measured now (--calibrate)"
            )
        else:
            found += _fitted(cases, lengths, fit_to)
    return Check(found, skipped)


def _inverse(rates: Rates) -> Columns:
    return {
        "matmul": 1 / rates.matmul,
        "pairs": 1 / rates.flash,
        **dict.fromkeys(("moved", "cache", "weights"), 1 / rates.bandwidth),
        "calls": rates.call,
    }


def _fitted(cases: Sequence[Case], lengths: Sequence[int], fit_to: int | None) -> list[Prediction]:
    limit = fit_to if fit_to is not None else lengths[max(2, len(lengths) // 2) - 1]
    known = [case for case in cases if case.tokens <= limit]
    if len({case.tokens for case in known}) < 2:
        raise FocusError(
            f"fit-to is {limit}; at least two lengths of each part must be up to it, {cases[0].part} has "
            f"{', '.join(map(str, lengths))}"
        )
    full = _fit([equation for case in known for equation in _full_equations(case)])
    extra = _fit(
        [
            (EXTRA[case.part](case), case.focused - _dot(SHARED[case.part](case), full), case.focused)
            for case in known
            if not case.dense
        ]
    )
    return [_predict(case, case.tokens <= limit, full, extra) for case in cases]


def _predict(case: Case, fitted: bool, rates: Columns, extra: Columns) -> Prediction:
    full = focus = _dot(FULL[case.part](case), rates)
    if not case.dense:
        focus = _dot(SHARED[case.part](case), rates) + _dot(EXTRA[case.part](case), extra)
    memory = None if case.memory is None else _held(case)
    return Prediction(
        case.part, case.setup, case.tokens, fitted, case.full, full, case.focused, focus, case.memory, memory
    )


def _held(case: Case) -> float:
    """Bytes of a cache with Focus over those of a full one; layers that Focus did not take hold the same."""
    kind = next(kind for kind, number in NUMBER.items() if number == case.number)
    plain, own = (cache_bytes(case.model, case.tokens, kind, focus) for focus in (None, case.focus))
    return 1 + (own / plain - 1) * case.taken / case.model.layers


Equation = tuple[Columns, float, float]  # counts, seconds, and the seconds an error is measured in


def _full_equations(case: Case) -> list[Equation]:
    """Equations of a row with full attention; where the share of attention was measured it is one of its own."""
    columns = FULL[case.part](case)
    if case.part == "prefill" and case.attention_share:
        inside = case.full * case.attention_share
        parts = (({"matmul": columns["matmul"]}, case.full - inside), ({"pairs": columns["pairs"]}, inside))
        return [(counts, seconds, case.full) for counts, seconds in parts]
    return [(columns, case.full, case.full)]


def _fit(equations: Sequence[Equation]) -> Columns:
    """Seconds per count, none below zero, least squares of the errors in relation to what was measured."""
    import torch

    names = sorted({name for counts, _, _ in equations for name in counts})
    scale = {name: max(counts.get(name, 0.0) for counts, _, _ in equations) or 1.0 for name in names}
    wanted = torch.tensor([[seconds / unit] for _, seconds, unit in equations], dtype=torch.float64)
    best, least = {}, float("inf")
    for chosen in (some for size in range(1, len(names) + 1) for some in combinations(names, size)):
        rows = [[counts.get(name, 0.0) / scale[name] / unit for name in chosen] for counts, _, unit in equations]
        table = torch.tensor(rows, dtype=torch.float64)
        solved = torch.linalg.lstsq(table, wanted, driver="gelsd").solution
        error = float((table @ solved - wanted).square().sum())
        if error < least and bool((solved >= 0).all()):
            found = zip(chosen, solved[:, 0].tolist(), strict=True)
            best, least = {name: value / scale[name] for name, value in found}, error
    return best


def _dot(counts: Columns, rates: Columns) -> float:
    return sum(count * rates.get(name, 0.0) for name, count in counts.items())


def _pairs(case: Case, focused: bool) -> float:
    """FLOPs of all layers' attention; layers that Focus did not take see all pairs."""
    layers, causal = case.model.layers, causal_pairs(case.tokens)
    pairs = case.taken * case.seen + (layers - case.taken) * causal if focused else layers * causal
    return 4.0 * case.model.query_width * pairs


def _cache(case: Case, share: float) -> float:
    """Bytes of keys and values that a token reads."""
    keys = case.tokens * (case.taken * share + case.model.layers - case.taken)
    return 2.0 * case.model.key_width * case.number * keys


def _kernel(case: Case) -> Columns:
    return {"pairs": _pairs(case, False), "calls": 1.0}


def _prefill(case: Case) -> Columns:
    return {"matmul": projections_work(case.model, case.tokens).matmul, "pairs": _pairs(case, False)}


def _prefill_shared(case: Case) -> Columns:
    beside = projections_work(case.model, case.tokens) + router_work(case.model, case.tokens, case.focus)
    return {"matmul": beside.matmul, "pairs": _pairs(case, True)}


def _added(case: Case) -> Columns:
    work = focus_work(case.model, case.tokens, case.focus).times(case.taken)
    return {"moved": work.moved * case.number / 2, "calls": work.calls}


def _decode(case: Case, share: float = 1.0) -> Columns:
    weights = case.number * case.model.parameters
    return {"weights": weights, "cache": _cache(case, share), "calls": LAYER_CALLS * case.model.layers}


FULL: dict[str, Callable[[Case], Columns]] = {"kernel": _kernel, "prefill": _prefill, "decode": _decode}
# of Focus, at full attention's rates; and what it adds, at rates of its own
SHARED: dict[str, Callable[[Case], Columns]] = {
    "kernel": lambda case: {"pairs": _pairs(case, True)},
    "prefill": _prefill_shared,
    "decode": lambda case: _decode(case, case.density),
}
EXTRA: dict[str, Callable[[Case], Columns]] = {
    "kernel": _added,
    "prefill": _added,
    "decode": lambda case: {"slower": _cache(case, case.density), "calls": FOCUS_CALLS * case.taken},
}
