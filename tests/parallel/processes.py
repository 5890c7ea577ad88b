"""Real gloo processes, forked from one that has loaded everything: a start costs seconds, a fork does not.

python -m tests.parallel.processes FOLDER PART...   each PART a module of this folder and a number of ranks: slices:4
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist


def fork(ranks: int, main, folder: Path) -> None:
    """main(rank, ranks, folder) in so many processes; ends the caller if one of them fails."""
    store = folder / f"{main.__module__}-{ranks}"
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 1
        try:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
            main(rank, ranks, folder)
            dist.barrier()
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # an interpreter that waits for gloo's threads may wait forever
    failed = False
    for _ in range(ranks):
        child, status = os.wait()
        children.remove(child)
        if status and not failed:  # the others would wait for it
            failed = True
            for other in children:
                os.kill(other, 15)
    if failed:
        sys.exit(1)


def run_all() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    parts = [part.split(":") for part in sys.argv[2:]]
    for name, ranks in [(import_module(f"tests.parallel.run_{name}"), int(ranks)) for name, ranks in parts]:
        fork(ranks, name.main, folder)


if __name__ == "__main__":
    run_all()
