"""Spread groups per query over the layers: no more on average than before, but where predictions gain by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from focus_kernels import FocusError

from ..attention import Seen
from .fit import once_differentiated, plainly, served_loss
from .mass import gains
from .warm import read

DOUBT = 2.0  # standard errors by which a gain must exceed chance


def spread_groups(model: nn.Module, batches: Iterable[dict[str, Tensor]], *, trust: float = 0.0) -> dict[int, int]:
    """Let layers look into different numbers of groups, `top_k` at most on average; returns them, and sets
    `layer_top_k`.

    The text is read once, as served with top_k groups in every layer, and differentiated: per layer the gains of all
    pairs are summed up by which choice of the query finds the key. batches: with labels, and of several texts, so that
    a gain can be told from chance. trust: as in `fit_routers`.
    """
    focus: Any = model.focus
    config = focus.config
    if config.match != "probe":
        raise FocusError(f"match is {config.match!r}; groups are spread for 'probe', where each costs the same")
    found: dict[int, list[Tensor]] = {index: [] for index in focus.layer_indices}
    before, config.layer_top_k = config.layer_top_k, None
    try:
        loss = partial(served_loss, trust=trust)
        read(focus, batches, _watcher(focus, found), "reading what further groups gain", loss=loss)
    except BaseException:
        config.layer_top_k = before
        raise
    worth = {index: _worth(torch.cat(rows)) for index, rows in found.items()}
    chosen = share_out(worth, config.top_k * len(worth))
    config.layer_top_k = {index: k for index, k in chosen.items() if k != config.top_k} or None
    return chosen


def _watcher(focus: Any, found: dict[int, list[Tensor]]) -> Callable[[Seen], Any]:
    """For `focus.watch`: what pairs gain, by which of a query's choices their key's group is; [B, K] a call."""
    config = focus.config

    def watch(seen: Seen) -> Callable[[Tensor], None]:
        plainly(seen)
        choices = seen.routed.logits.topk(config.num_groups, -1).indices  # [B, T, K]
        keys = F.one_hot(choices[..., 0], config.num_groups).float()

        def note(out: Tensor, grad: Tensor) -> None:
            total = torch.zeros(len(choices), config.num_groups)
            for some, weights in gains(seen, out, grad, config.window, config.sinks, config.match):
                by_group = weights.float() @ keys.to(weights.device)  # [B, R, K]
                total += by_group.gather(2, choices[:, some].to(by_group.device)).sum(1).cpu()
            found[seen.index].append(total)

        return once_differentiated(note)

    return watch


def _worth(rows: Tensor) -> Tensor:
    """Gains by choice, a row per text [N, K] -> what k groups are worth more than one, less what may be chance [K]."""
    more = rows.double().cumsum(1)
    more = more - more[:, :1]
    chance = more.std(0) / len(more) ** 0.5 if len(more) > 1 else torch.zeros(more.shape[1])
    return more.mean(0) - DOUBT * chance


def share_out(worth: dict[int, Tensor], total: int) -> dict[int, int]:
    """How many groups each layer gets, at least one, of no more than `total`, so that the sum of their worths, [K] by
    number of groups, is the largest, with the fewest groups that reach it; exact, by dynamic programming."""
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}  # by groups given away
    for number, values in enumerate(worth.values(), 1):
        before, best = best, {}
        for spent, (value, given) in before.items():
            for k, more in enumerate(values.tolist()[: total - spent - len(worth) + number], 1):
                best[spent + k] = max(best.get(spent + k, (-math.inf, ())), (value + more, (*given, k)))
    spent = max(best, key=lambda groups: (best[groups][0], -groups))
    return dict(zip(worth, best[spent][1], strict=True))
