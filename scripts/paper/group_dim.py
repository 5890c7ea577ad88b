"""How small the projection may be in which tokens meet the centroids.

python scripts/paper/group_dim.py
"""

from __future__ import annotations

from typing import Any

from study import Bench, Study
from summary import Claim, Settings


def cells(bench: Bench) -> list[Settings]:
    hidden = bench.model.config.get_text_config(decoder=True).hidden_size
    sizes = [size for size in (128, 32, 16, 4) if size < hidden]
    found: list[Settings] = [{"method": "full"}]
    for seed in bench.seeds:
        found += [{"group_dim": size, "seed": seed} for size in ("hidden", *sizes)]
    return found


def measure(bench: Bench, settings: Settings) -> dict[str, Any]:
    if settings.get("method") == "full":
        return bench.full()
    size = settings["group_dim"]
    if size == "hidden":
        size = bench.model.config.get_text_config(decoder=True).hidden_size
    with bench.trained(settings["seed"], group_dim=size) as model:
        return bench.measure(model)


STUDY = Study(
    "group_dim",
    "Size of the projection, d_g",
    "GPT-2 124M on PG-19, d_g 768/128/32/16: 34.8/34.5/34.5/34.5.",
    cells,
    measure,
    [
        Claim("16 dimensions are better than all", {"group_dim": 16}, "less", {"group_dim": "hidden"}),
        Claim("16 dimensions are as good as 32", {"group_dim": 16}, "same", {"group_dim": 32}),
    ],
)

if __name__ == "__main__":
    STUDY.main()
