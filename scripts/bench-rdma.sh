#!/bin/bash
# Measures verbs, perftest and the wheel over soft-RoCE in the machine of rxe-vm.sh, and writes the table into
# docs/PERFORMANCE.md. Arguments are those of scripts/benchcompare.
set -euo pipefail
cd "$(dirname "$0")/.."
export MOONCAKE_CACHE=${MOONCAKE_CACHE:-$PWD/.cache}
build=$MOONCAKE_CACHE/rdma
scripts/setup-rdma.sh
mkdir -p "$build/out"
export CGO_ENABLED=0
"${GO:-go}" build -buildvcs=false -o "$build/mooncake" ./cmd/mooncake
"${GO:-go}" build -buildvcs=false -o "$build/benchcompare" ./scripts/benchcompare
cp docs/PERFORMANCE.md "$build/out/"
python=$(ls -d "$MOONCAKE_CACHE"/wheel-*/bin/python | head -1)
scripts/rxe-vm.sh -m 4096 -t 900 -n 1 -o "$build/out" -- "$build/benchcompare" -only rdma -seconds 3s -mooncake "$build/mooncake" \
	-wheel-python "$python" -o /out/PERFORMANCE.md "$@"
cp "$build/out/PERFORMANCE.md" docs/PERFORMANCE.md
