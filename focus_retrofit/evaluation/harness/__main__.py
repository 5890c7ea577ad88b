"""lm_eval's command line with the model type `focus` and the tasks of this package.

lm_eval looks for model types in its own package only, so that something has to import ours first."""

from __future__ import annotations

import sys

from lm_eval.__main__ import cli_evaluate

from . import TASKS


def main() -> None:
    own = any(word.partition("=")[0] == "--include_path" for word in sys.argv)
    if len(sys.argv) > 2 and not own:
        sys.argv += ["--include_path", str(TASKS)]
    cli_evaluate()


if __name__ == "__main__":
    main()
