#!/usr/bin/env bash
# Makes .venv, installs, checks style and types, and runs the tests. Arguments go to pytest: scripts/test.sh -k merge
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE  # where it is set, every process would compile all of torch and transformers anew
bash scripts/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
# one thread for each of two processes: small tensors gain nothing by threads
exec env OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
