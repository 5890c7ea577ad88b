#!/usr/bin/env bash
# Times the kernels on this machine and writes kernels/results/*.json; about 20 minutes on 2 cores. Leave it alone
# meanwhile: the numbers are ratios within a run, but a busy neighbour still blurs them.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
out=kernels/results
bench() { .venv/bin/python -m focus_kernels.bench "$@"; echo; }
bench --lengths 1K,2K,4K,8K,16K,32K,64K --backends cpu:sorted,cpu:chunked --stream 1024 --repeats 5 --json $out/k8-k1.json
bench --lengths 64K --groups 4 --top-k 2 --repeats 4 --json $out/k4-k2.json
bench --lengths 64K --groups 16 --top-k 2 --repeats 4 --json $out/k16-k2.json
bench --lengths 4K,16K --groups 4 --top-k 2 --match share --backends cpu:sorted,cpu:chunked --repeats 2 --json $out/share.json
bench --lengths 8K,32K --backward --backends cpu:sorted,cpu:chunked --repeats 3 --json $out/backward.json
bench --lengths 4K,16K --backends auto,flex --dense --repeats 3 --json $out/peers.json
bench --lengths 64K --heads 9/3 --backends cpu:sorted,cpu:chunked --stream 1024 --repeats 2 --json $out/gqa.json
bench --lengths 128K,256K,1M --repeats 2 --json $out/long.json
.venv/bin/python -m focus_kernels.bench.decode --lengths 4K,16K,64K --json $out/decode.json
