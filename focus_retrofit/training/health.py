"""How the groups are doing while they are trained: balance, confidence, and whether tokens stay where they were."""

from __future__ import annotations

import logging

from torch import Tensor

from ..controller import Focus

logger = logging.getLogger(__name__)


def group_health(focus: Focus, before: dict[int, Tensor]) -> dict[str, float]:
    """Numbers by name, per layer and their worst or mean, from the last forward pass; `before` holds the groups of the
    same text at the last evaluation, and is brought up to date."""
    found: dict[str, float] = {}
    count = focus.config.num_groups
    lines = [line for line in focus.report().layers if line.shares]
    for line in lines:
        name, largest, least = f"layer_{line.layer:02}", max(line.shares), min(line.shares)
        found[f"dominance/{name}"] = largest
        found[f"confidence/{name}"] = line.confidence or 0.0
        groups = focus.groups_seen(line.layer)
        if line.layer in before and before[line.layer].shape == groups.shape:
            found[f"stability/{name}"] = (before[line.layer] == groups).float().mean().item()
        before[line.layer] = groups
        if count > 1 and largest > min(0.9, 2 / count + 0.1):
            logger.warning(
                "layer %d: one group holds %.0f%% of the tokens (even: %.0f%%): routing saves little there; train with "
                "balance='potentials', a lower learning rate or larger batches",
                line.layer,
                100 * largest,
                100 / count,
            )
        if least < 0.1 / count:
            logger.warning(
                "layer %d: a group is all but dead (%.1f%% of the tokens): use fewer groups, or a warm start",
                line.layer,
                100 * least,
            )
    for kind, worst in (("dominance", max), ("confidence", min), ("stability", min)):
        values = [value for name, value in found.items() if name.startswith(kind + "/")]
        if values:
            found[kind] = worst(values)
    if lines:
        found["density"] = sum(line.density or 0.0 for line in lines) / len(lines)
    return found
