"""Data on its way into a page: plain, and never markup."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def plain(value: Any) -> Any:
    """Dicts, lists, strings and numbers only; a number that is not finite becomes null, as JSON has none."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def script_json(value: Any) -> str:
    """ASCII JSON that cannot end the script element it stands in."""
    return re.sub("[<>&]", lambda found: _ESCAPES[found[0]], json.dumps(plain(value), allow_nan=False))


def visible(text: Any) -> str:
    """A string that HTML, XML and UTF-8 can all hold: control characters become the replacement mark."""
    return _CONTROLS.sub("\ufffd", str(text))


def shorten(text: Any, length: int) -> str:
    """For labels: one line, no longer than it may be."""
    line = " ".join(visible(text).split())
    return line if len(line) <= length else line[: length - 1] + "…"
