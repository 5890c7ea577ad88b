"""`python -m focus_kernels.draw`: pictures of which call computes which pair, for both engines."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

import torch
from torch import Tensor

from .files import write_atomically
from .plan import make_plan
from .problem import Problem
from .reference import matches

BAND, SINKS, FIRST_GROUP = 1, 2, 3  # what a cell of a picture says; 0 is a pair nobody computes


def cells(engine: str, groups: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """[n, n] which set computes each pair (0 none, 1 band, 2 sinks, 3 + b bucket b), and how often it is computed."""
    n = groups.shape[0]
    i, j = torch.arange(n)[:, None], torch.arange(n)
    plan = make_plan(engine, groups, problem)
    band = (i >= j) & (i - j <= problem.window)
    if plan.causal:
        shared = matches(groups, groups, problem.match) | (j < problem.sinks)
        band &= ~(shared & (i >= problem.sinks))
    which, times = band.long() * BAND, band.long()
    if not plan.causal:
        far = (j < problem.sinks) & (i - j > problem.window)
        which, times = which + far * SINKS, times + far
    for number, bucket in enumerate(plan.buckets):
        for row, reach in zip(bucket.rows.tolist(), bucket.reach.tolist(), strict=True):
            seen = bucket.keys[:reach]
            smaller = groups[row][groups[row] < bucket.below]
            elsewhere = (groups[seen][:, :, None] == smaller).any(-1).any(-1)
            elsewhere |= (seen < problem.sinks) & (smaller.numel() > 0)
            which[row, seen[~elsewhere]] = FIRST_GROUP + number
            times[row, seen[~elsewhere]] += 1
    return which, times


def draw(folder: Path) -> list[Path]:
    """Write the pictures; returns their paths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    folder.mkdir(parents=True, exist_ok=True)
    n, window, sinks = 48, 6, 2
    cases = [
        ("sorted", "probe", 1, "sorted engine, one group per token"),
        ("sorted", "share", 2, "sorted engine, share one of two groups"),
        ("chunked", "probe", 1, "chunked engine, one group per token"),
        ("chunked", "probe", 2, "chunked engine, probe two groups"),
    ]
    torch.manual_seed(4)
    order = torch.rand(n, 4).argsort(1)
    written = []
    for engine, match, top_k, title in cases:
        groups = order[:, :top_k]
        problem = Problem(4, top_k, window, sinks, match, 1.0, None, "distant", None, None)
        which, times = cells(engine, groups, problem)
        if int(times.max()) > 1:
            raise AssertionError(f"{title}: a pair is computed {int(times.max())} times")
        colours = ["#ffffff", "#c9ced6", "#3b3f46", "#e07a5f", "#3d85c6", "#81b29a", "#f2cc8f"]
        figure, axes = pyplot.subplots(1, 2, figsize=(11, 6.2))
        order_by_group = torch.argsort(groups[:, 0], stable=True)
        views = [
            (which, "in order of position"),
            (which[order_by_group][:, order_by_group], "rows and keys sorted by their first group"),
        ]
        for axis, (picture, label) in zip(axes, views, strict=True):
            axis.imshow(picture, cmap=ListedColormap(colours), vmin=0, vmax=len(colours) - 1, interpolation="nearest")
            axis.set(title=label, xlabel="key", ylabel="query")
            axis.set_xticks([])
            axis.set_yticks([])
        names = ["not visible", "band call", "sinks", *(f"bucket {b}" for b in range(4))]
        shown = sorted(set(which.unique().tolist()))
        handles = [Patch(facecolor=colours[c], edgecolor="#888888", label=names[c]) for c in shown]
        figure.legend(handles=handles, loc="lower center", ncol=len(shown), frameon=False)
        figure.suptitle(f"{title} (window {window}, {sinks} sinks, 4 groups)")
        figure.tight_layout(rect=(0, 0.06, 1, 0.98))
        path = folder / f"{engine}-{match}-k{top_k}.png"
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=80)
        write_atomically(path, drawn.getvalue())
        pyplot.close(figure)
        written.append(path)
    return written


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m focus_kernels.draw", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("kernels/figures"), help="where to (%(default)s)")
    folder = parser.parse_args(argv).folder
    try:
        for path in draw(folder):
            print(path)
    except ImportError:
        print("drawing needs matplotlib: pip install 'focus-retrofit[report]'", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
