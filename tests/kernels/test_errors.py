"""Bad input raises a message that names the value."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from focus_kernels import BackendError, FocusError, KeyBuckets, attend_chunk, focus_attention, reference_attention

from .cases import Case


def changed(**changes: Any) -> tuple[list[torch.Tensor], dict[str, Any]]:
    case = Case(tokens=20)
    tensors = dict(zip(("query", "key", "value", "groups"), (*case.tensors(), case.ids), strict=True))
    options = {**case.options}
    for name, change in changes.items():
        if name in tensors:
            tensors[name] = change(tensors[name])
        else:
            options[name] = change
    return list(tensors.values()), options


def set_id(token: int, value: int) -> Any:
    def change(ids: torch.Tensor) -> torch.Tensor:
        ids = ids.clone()
        ids[0, token, 0] = value
        return ids

    return change


BAD = {
    "id too large": ({"groups": set_id(3, 9)}, r"group id 9 is outside 0\.\.3"),
    "id negative": ({"groups": set_id(3, -2)}, r"group id -2 is outside"),
    "id twice": ({"groups": lambda g: torch.cat([g, g], -1)}, r"token \[0, 0\] lists group \d twice"),
    "more ids than groups": ({"groups": lambda g: g.expand(-1, -1, 5)}, "5 groups per token but num_groups is 4"),
    "ids not integer": ({"groups": lambda g: g.float()}, "groups must hold integer ids, got torch.float32"),
    "ids of another shape": ({"groups": lambda g: g[:, 1:]}, r"groups must be \[1, 20, k\]"),
    "no groups": ({"num_groups": 0}, "num_groups is 0"),
    "window below sinks": ({"window": 3}, "window is 3 but sinks is 4"),
    "sinks negative": ({"sinks": -1}, "sinks is -1"),
    "unknown match": ({"match": "any"}, "match is 'any'; choose one of probe, share"),
    "unknown scope": ({"temperature_scope": "near"}, "temperature_scope is 'near'"),
    "temperature zero": ({"temperature": 0.0}, r"temperature is 0\.0"),
    "temperature negative": ({"temperature": torch.tensor([1.0, -0.5, 1.0, 1.0])}, r"temperature is -0\.5"),
    "temperature nan": ({"temperature": float("nan")}, "temperature is nan"),
    "temperature of another shape": ({"temperature": torch.ones(3)}, r"one number or \[4\]"),
    "scale zero": ({"scale": 0.0}, r"scale is 0\.0"),
    "softcap negative": ({"softcap": -5.0}, r"softcap is -5\.0"),
    "sink logits of another shape": ({"sink_logits": torch.ones(2)}, r"sink_logits must be \[4\]"),
    "padding of another shape": ({"padding_mask": torch.ones(1, 19)}, r"padding_mask must be \[1, 20\]"),
    "documents of another shape": ({"sequence_ids": torch.ones(2, 20)}, r"sequence_ids must be \[1, 20\]"),
    "documents not integer": ({"sequence_ids": torch.ones(1, 20)}, "sequence_ids must be integers, got torch.float32"),
    "query of three dimensions": ({"query": lambda q: q[0]}, r"query must be \[batch, heads, tokens, head size\]"),
    "key of another length": ({"key": lambda k: k[:, :, 1:]}, r"key \[1, 2, 19, 16\] does not fit query"),
    "value of another length": ({"value": lambda v: v[:, :, 1:]}, r"value \[1, 2, 19, 16\] does not fit key"),
    "heads not a multiple": ({"query": lambda q: q[:, :3]}, "3 query heads are not a multiple of 2 key heads"),
    "integers": ({"query": lambda q: q.int()}, "query has dtype torch.int32"),
    "two dtypes": ({"key": lambda k: k.float()}, "key is torch.float32 on cpu, query is torch.float64"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("attend", [focus_attention, reference_attention], ids=["focus", "reference"])
def test_names_the_value(name: str, attend: Any) -> None:
    changes, message = BAD[name]
    tensors, options = changed(**changes)
    with pytest.raises(FocusError, match=message):
        attend(*tensors, **options)


def test_unknown_backend() -> None:
    tensors, options = changed(backend="fastest")
    with pytest.raises(FocusError, match="backend 'fastest' is not known; choose 'auto' or one of cpu"):
        focus_attention(*tensors, **options)
    tensors, options = changed(backend="cpu:quick")
    with pytest.raises(FocusError, match="engine 'quick' in backend 'cpu:quick' is not known"):
        focus_attention(*tensors, **options)


def test_a_backend_that_cannot_says_which_can() -> None:
    with pytest.raises(BackendError, match=r"softcap=30.0 is not known to aten's kernel; these would: .*eager"):
        Case(softcap=30.0).focus("cpu")
    with pytest.raises(BackendError, match=r"sorted engine cannot serve match='probe' with 2.*would: cpu"):
        Case(top_k=2).focus("cpu:sorted")
    with pytest.raises(BackendError, match="flash-attn is not installed"):
        Case().focus("flash_attn")


def test_streams() -> None:
    case = Case(tokens=8)
    q, k, v = case.tensors()
    with pytest.raises(FocusError, match="sinks is 9"):
        KeyBuckets(num_groups=4, window=8, sinks=9)
    stream = KeyBuckets(num_groups=4, window=8)
    with pytest.raises(FocusError, match="stream is empty"):
        attend_chunk(q, stream)
    stream.append(k, v, case.ids)
    with pytest.raises(
        FocusError, match=r"query \[1, 4, 3, 16\] does not fit the last chunk: it must be \[1, heads, 8, 16"
    ):
        attend_chunk(q[:, :, :3], stream)
    with pytest.raises(FocusError, match=r"query has 4 heads, torch.float32"):
        attend_chunk(q.float(), stream)
    with pytest.raises(FocusError, match="use focus_attention"):
        attend_chunk(q.requires_grad_(), stream)
    with pytest.raises(FocusError, match="this chunk is"):
        stream.append(k.float(), v.float(), case.ids)
    with pytest.raises(FocusError, match="head sizes 16 and 8, earlier ones 16 and 16"):
        stream.append(k, v[..., :8], case.ids)
    with pytest.raises(FocusError, match="group id 7"):
        stream.append(k, v, torch.full_like(case.ids, 7))
    with pytest.raises(BackendError, match="it has no streaming form"):
        attend_chunk(q.detach(), stream, backend="reference")
