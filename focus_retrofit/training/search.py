"""Fit one router to weighed pairs, from many starts at once: a step's time goes into reading the pairs, not into the
routers, and where a fit ends depends much on where it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..balance import fit_potentials, sinkhorn
from ..router import Router, draw

Text = tuple[Tensor, Tensor]  # hidden [T, d]; weights of pairs [T, T], of queries (rows) and earlier keys
ROUNDS = 12  # of Sinkhorn in a step, which begins where the last one ended
SAMPLE = 4  # each so many-th token is asked for the potentials of a start


@dataclass(frozen=True)
class Search:
    """How a router is fitted."""

    steps: int = 400  # of Adam, on one text each
    lr: float = 5e-3
    decay: float = 1.0  # of the weights, as AdamW's
    balance: float = 0.3  # weight of what uneven groups cost
    starts: int = 8  # routers that are fitted side by side: the one at hand, the others drawn
    next_choice: float = 0.5  # what a pair counts that one more group per query would keep


def fit_router(router: Router, texts: list[Text], how: Search, generator: torch.Generator) -> float:
    """Let the router's groups keep pairs of large weight and lose those of negative weight; returns the share of the
    weights that they lose, of all, whatever their sign."""
    device = router.projection.device
    routers = _Routers(router, how.starts, generator)
    optimizer = torch.optim.AdamW(routers.parameters, lr=how.lr, weight_decay=how.decay, betas=(0.9, 0.999))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 10) * (1 - n / how.steps) ** 0.5)
    unit = torch.stack([weights.float().abs().sum() for _, weights in texts]).mean().clamp_min(1e-20).to(device)
    with torch.enable_grad():
        for number in _order(len(texts), how.steps, generator):
            hidden, weights = (x.to(device, torch.float32) for x in texts[number])
            scores = routers.scores(hidden)
            loss = -_kept(routers.balanced(scores), weights, router.top_k, how.next_choice).sum() / unit
            optimizer.zero_grad()
            (loss + how.balance * routers.unevenness(scores).sum()).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return routers.choose(router, texts, unit, how)


class _Routers:
    """Several routers of one layer, side by side: projection [R, d, d_g], centroids [R, K, d_g], potentials [R, K].

    Tensors of tokens are [R, K, T]: a softmax over few groups is fast only where tokens lie side by side.
    """

    def __init__(self, router: Router, count: int, generator: torch.Generator):
        self.config, width = router.config, router.projection.shape[0]
        drawn = [draw(width, self.config, generator) for _ in range(count - 1)]
        at_hand = (router.projection.detach(), router.centroids.detach())
        self.parameters = [
            torch.stack([own.float(), *(part.to(own.device) for part in others)]).requires_grad_()
            for own, *others in zip(at_hand, *drawn, strict=True)
        ]
        self.potentials = router.potentials.detach().float().expand(count, -1).clone()
        self.begun = False

    def scores(self, hidden: Tensor) -> Tensor:
        """hidden [T, d] -> [R, K, T]"""
        projection, centroids = self.parameters
        maps = centroids @ projection.mT / self.config.tau  # [R, K, d]
        return (maps.flatten(0, 1) @ hidden.T).unflatten(0, maps.shape[:2])

    def balanced(self, scores: Tensor) -> Tensor:
        """Logits of the groups, balanced over this text; an average of its potentials is kept."""
        if self.config.balance == "sinkhorn":
            return sinkhorn(scores.mT, self.config.sinkhorn_rounds).mT
        if self.config.balance == "softmax":
            return scores
        with torch.no_grad():
            fitted = fit_potentials(scores.mT, self.potentials, ROUNDS if self.begun else 200)
            self.potentials += (fitted - self.potentials) * (1 - self.config.balance_decay if self.begun else 1)
            self.begun = True
        return scores + fitted[..., None]

    def kept_logits(self, scores: Tensor) -> Tensor:
        """With the potentials that are kept, as they will be served."""
        return self.balanced(scores) if self.config.balance == "sinkhorn" else scores + self.potentials[..., None]

    def unevenness(self, scores: Tensor) -> Tensor:
        """As `Router.unevenness`, of each router [R]."""
        return _unevenness(self.kept_logits(scores))

    def choose(self, router: Router, texts: list[Text], unit: Tensor, how: Search) -> float:
        """Put the best of them, hard groups and saved potentials, in place of the router."""
        device = router.projection.device
        if self.config.balance == "potentials":
            some = torch.cat([hidden[::SAMPLE] for hidden, _ in texts]).to(device, torch.float32)
            self.potentials = fit_potentials(self.scores(some).mT, self.potentials)
        kept = value = torch.zeros(self.potentials.shape[0], device=device)
        for hidden, weights in texts:
            scores, weights = self.scores(hidden.to(device, torch.float32)), weights.to(device, torch.float32)
            logits = self.kept_logits(scores) * 1e4  # as good as hard
            kept = kept + _kept(logits, weights, router.top_k, 0.0)
            value = value + _kept(logits, weights, router.top_k, how.next_choice)
            value = value - how.balance * unit * _unevenness(logits)
        best = int(value.argmax())
        router.projection.copy_(self.parameters[0][best])
        router.centroids.copy_(self.parameters[1][best])
        if self.config.balance == "potentials":
            known = torch.cat([router.scores(hidden) for hidden, _ in texts])
            router.potentials.copy_(fit_potentials(known, self.potentials[best]))
        return 1 - float(kept[best] / (len(texts) * unit))


def _unevenness(logits: Tensor) -> Tensor:
    """[R, K, T] -> [R]"""
    return logits.shape[1] * logits.softmax(1).mean(-1).square().sum(-1) - 1


def _kept(logits: Tensor, weights: Tensor, top_k: int, next_choice: float) -> Tensor:
    """What groups keep of the weights [T, T]: sum_ij w_ij h_i.g_j for soft assignments g and a query's choices h, for
    each router [R]. A query's first choice is its group, further ones are the best of what is left.

    It is bilinear: its gradient needs w h and w' g, not the pairs themselves.
    """
    groups = logits.softmax(1)  # [R, K, T]
    counts = [1.0] * top_k + [next_choice]
    choices, left = [groups], logits
    for count in counts[1 : logits.shape[1]]:
        if not count:
            break
        now = left.detach()
        left = left.masked_fill(now == now.amax(1, keepdim=True), -1e30)  # argmax across groups is slow
        choices.append(count * left.softmax(1))
    looked = torch.stack(choices).sum(0)
    flat = [x.detach().flatten(0, 1) for x in (groups, looked)]
    for_queries = (flat[0] @ weights.T).unflatten(0, groups.shape[:2])  # sum_j w_ij g_j
    kept = (looked * for_queries).sum((1, 2))
    if not groups.requires_grad:
        return kept
    for_keys = (flat[1] @ weights).unflatten(0, groups.shape[:2])  # sum_i w_ij h_i
    through = (groups * for_keys).sum((1, 2))
    return kept + through - through.detach()


def _order(count: int, steps: int, generator: torch.Generator) -> Iterator[int]:
    """`steps` numbers below `count`, each as often as the others."""
    drawn = 0
    while drawn < steps:
        for number in torch.randperm(count, generator=generator).tolist()[: steps - drawn]:
            yield number
            drawn += 1
