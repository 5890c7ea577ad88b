"""Children that are killed, or run out of disk or memory, while they write: python -m tests.run_faults WHAT FOLDER

One process pays for the imports and forks the children that suffer; it prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from focus_retrofit import FocusConfig, calibrate, retrofit
from focus_retrofit.adapter import describe_adapter, read_adapter
from focus_retrofit.benchmark.records import read_bench, write_bench
from focus_retrofit.cli import main
from focus_retrofit.record import Record
from tests.matrix import BY_NAME

KILLS = 40
ROW = {"part": "kernel", "setup": "x", "tokens": 1, "full_seconds": 1.0, "focus_seconds": 1.0, "speedup": 1.0}


def forked(work: Callable[[], Any]) -> int:
    """The process id of a child that does some work and exits with 0, or with 1 if that raises."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def outcome(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Files:
    """An adapter, a benchmark and a record that say the same number everywhere."""

    def __init__(self, folder: Path):
        self.folder, self.bench, self.record = folder / "adapter", folder / "bench.json", folder / "record.json"
        self.model: Any = retrofit(BY_NAME["Llama"].make(dtype=torch.float32), FocusConfig(num_groups=4, window=8))
        self.write(0)

    def write(self, number: int) -> None:
        with torch.no_grad():
            for parameter in self.model.focus.trainable_parameters():
                parameter.fill_(number)
        self.model.focus.save_pretrained(self.folder, results={"number": number})
        write_bench(self.bench, [{**ROW, "tokens": number + 1}] * 50, "bench")  # type: ignore[list-item]
        record = Record(None, {"number": 0})
        record.path, record["number"] = self.record, [number] * 1000
        record.save()

    def rewrite(self) -> None:
        number = 1
        while True:
            self.write(number)
            number += 1

    def read(self) -> list[int]:
        """The numbers found, each file whole and of one mind."""
        _, tensors = read_adapter(self.model, self.folder)
        (number,) = {float(x) for name, t in tensors.items() if "potential" not in name for x in t.flatten()}
        assert describe_adapter(self.folder)["results"]["number"] == number
        (tokens,) = {row["tokens"] for row in read_bench(self.bench)["rows"]}
        (noted,) = set(Record(self.record, {"number": 0})["number"])
        return [int(number), tokens - 1, noted]

    def strays(self) -> list[str]:
        return [path.name for folder in (self.folder, self.bench.parent) for path in folder.glob(".*")]


def killed(folder: Path) -> dict[str, Any]:
    """Kill a child at a random moment, again and again; then read what is there."""
    files, pick, seen, strays = Files(folder), random.Random(0), set(), 0
    for _ in range(KILLS):
        child = forked(files.rewrite)
        time.sleep(pick.uniform(0.002, 0.05))
        os.kill(child, signal.SIGKILL)
        assert outcome(child) == -signal.SIGKILL
        seen.add(tuple(files.read()))
        strays = max(strays, len(files.strays()))
    files.write(7)
    return {"kills": KILLS, "states": len(seen), "most_strays": strays, "left": files.strays(), "last": files.read()}


def full_disk(folder: Path) -> dict[str, Any]:
    """No file may grow beyond some bytes."""
    files, codes = Files(folder), []

    def work(limit: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        files.write(1)

    for limit in (0, 100, 1000, 3000):
        codes.append(outcome(forked(lambda limit=limit: work(limit))))
    numbers = files.read()
    return {"codes": codes, "numbers": numbers, "left": files.strays()}


def no_memory(folder: Path) -> dict[str, Any]:
    """The address space is nearly full when an adapter is saved, and when a command attends to a long sequence."""
    files = Files(folder)

    def limit(spare: int) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + spare
        resource.setrlimit(resource.RLIMIT_AS, (size, size))

    def save() -> None:
        routers = list(files.model.focus.trainable_parameters())
        limit(64 << 20)
        routers[0].data = routers[0].data.expand(1 << 20, *routers[0].shape)  # small, until it is written
        files.write(1)

    def command() -> None:
        limit(64 << 20)
        told = os.open(folder / "said.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(told, 2)
        try:
            main(["bench", "kernel", "--lengths", "512K", "--repeats", "1", "--output", str(files.bench)])
        except SystemExit as end:
            os._exit(int(end.code or 0))

    codes = [outcome(forked(save)), outcome(forked(command))]
    said = (folder / "said.txt").read_text()
    return {"codes": codes, "numbers": files.read(), "left": files.strays(), "said": said}


def two_at_once(folder: Path) -> dict[str, Any]:
    """Two processes measure where Focus wins, and write that to one file."""
    os.environ["FOCUS_RETROFIT_CACHE"] = str(folder)
    calibrate.measure = lambda what, model, config, backend: config.window  # type: ignore[assignment]
    model = BY_NAME["Llama"].make(dtype=torch.float32)

    def work(first: int) -> None:
        for window in range(first, first + 60, 2):
            assert calibrate.crossover(model, FocusConfig(num_groups=4, window=window), "auto") == window

    codes = [outcome(child) for child in [forked(lambda first=first: work(first)) for first in (100, 101)]]
    known = json.loads((folder / "crossover.json").read_text())
    right = all(entry["crossover"] == entry["focus"][3] for entry in known.values())
    work(100)  # what was lost is measured again
    complete = len(json.loads((folder / "crossover.json").read_text())) >= 30
    strays = [path.name for path in folder.glob(".*")]
    return {"codes": codes, "kept": len(known), "right": right, "complete": complete, "left": strays}


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[2])
    found = {}
    for work in (killed, full_disk, no_memory, two_at_once):
        if work.__name__ in sys.argv[1].split(","):
            (place / work.__name__).mkdir()
            found[work.__name__] = work(place / work.__name__)
    print(json.dumps(found))
