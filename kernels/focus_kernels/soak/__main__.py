"""Random calls and streams against the oracle: python -m focus_kernels.soak --count 200

A configuration is drawn from its number alone: what failed is run again by --seed NUMBER --count 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from ..files import write_atomically
from .run import KERNELS, Kind, record, soak


def main(
    argv: list[str] | None = None,
    kinds: Mapping[str, Kind] = KERNELS,
    command: str = "python -m focus_kernels.soak",
) -> int:
    parser = argparse.ArgumentParser(command, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="configurations (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first (%(default)s)")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    parser.add_argument("--verbose", action="store_true", help="say what each configuration was")
    args = parser.parse_args(argv)
    from tqdm.auto import tqdm

    with tqdm(total=args.count, unit="", disable=None, desc="configurations", leave=False) as bar:

        def note(told: str) -> None:
            bar.update()
            if args.verbose:
                bar.write(told)

        failures = soak(args.count, args.seed, kinds, note)
    for failure in failures:
        again = f"{command} --seed {failure.number} --count 1"
        print(f"{failure.kind} {failure.number} failed: {failure.message}\n  again: {again}", file=sys.stderr)
    print(f"{args.count - len(failures)} of {args.count} configurations agree with the oracle")
    if args.json:
        write_atomically(args.json, json.dumps(record(args.count, args.seed, failures), indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
