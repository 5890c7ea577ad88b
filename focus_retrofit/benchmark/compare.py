"""Two benchmark files against each other, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from focus_kernels.errors import FocusError

KEY = ("part", "tokens", "setup")


def compare_benches(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `b` makes of the rows that both records have (`read_bench`): ratios b / a of speedups and of seconds.

    Speedups are ratios within a run and may be compared over machines; seconds only where machine and threads agree.
    """
    old, new = _by_key(a), _by_key(b)
    common = [key for key in old if key in new]
    if not common:
        raise FocusError(
            f"the two files have no row in common (same part, tokens and setup): one has {_brief(old)}, the other "
            f"{_brief(new)}"
        )
    same = a.get("machine") == b.get("machine")
    return [
        {
            **dict(zip(KEY, key, strict=True)),
            "speedup": [old[key]["speedup"], new[key]["speedup"]],
            "speedup_ratio": new[key]["speedup"] / old[key]["speedup"],
            "full_seconds_ratio": new[key]["full_seconds"] / old[key]["full_seconds"],
            "focus_seconds_ratio": new[key]["focus_seconds"] / old[key]["focus_seconds"],
            "same_machine": same and old[key].get("threads") == new[key].get("threads"),
        }
        for key in common
    ]


def _by_key(record: Mapping[str, Any]) -> dict[tuple[Any, ...], Any]:
    return {tuple(row[name] for name in KEY): row for row in record["rows"]}


def _brief(rows: dict[tuple[Any, ...], Any]) -> str:
    setups = sorted({f"{part} of {setup}" for part, _, setup in rows})
    lengths = sorted({tokens for _, tokens, _ in rows})
    return f"{'; '.join(setups)} at {lengths}" if rows else "no rows"
