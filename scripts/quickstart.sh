#!/usr/bin/env bash
# Makes .venv, installs, retrofits SmolLM2-135M and generates with it, and times the kernels; results in runs/quickstart/.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
mkdir -p runs/quickstart
.venv/bin/python examples/retrofit_smollm2.py
.venv/bin/python -m focus_kernels.bench --lengths 1K,4K,16K,32K --repeats 3 --json runs/quickstart/kernels.json "$@"
echo "written: runs/quickstart/kernels.json"
