#!/bin/bash
# Builds the tests of RDMA and runs them in the soft-RoCE machine of rxe-vm.sh, for SECONDS_LIMIT at most. RUN is a regular
# expression of tests.
set -euo pipefail
cd "$(dirname "$0")/.."
export MOONCAKE_CACHE=${MOONCAKE_CACHE:-$PWD/.cache}
build=$MOONCAKE_CACHE/rdma
run=${RUN:-.}

if [ "${1:-}" != inside ]; then
	status=0
	scripts/setup-rdma.sh || status=$?
	if [ $status = 3 ] && [ "${CI:-}" != true ] && [ "${CI:-}" != 1 ]; then
		echo "test-rdma: skipped, see above; under CI=true this is a failure"
		exit 0
	fi
	[ $status = 0 ] || exit $status
	mkdir -p "$build"
	# As in the binary that is delivered: verbs without cgo.
	export CGO_ENABLED=0
	for p in transports/verbs/ibv test/rdma; do
		"${GO:-go}" test -c -o "$build/${p//\//-}.test" "./$p"
	done
	"${GO:-go}" build -buildvcs=false -o "$build/mooncake" ./cmd/mooncake
	export MOONCAKE_TEST_BINARY=$build/mooncake
	exec scripts/rxe-vm.sh -m 4096 -t "${SECONDS_LIMIT:-540}" -n 2 -- env RUN="$run" scripts/test-rdma.sh inside
fi

export MOONCAKE_TEST_RDMA=1
status=0
# The layout of structures is compared outside: a compiler is slow in here.
(cd transports/verbs/ibv && "$build/transports-verbs-ibv.test" -test.v -test.timeout 5m -test.run "$run" -test.skip 'Layout') || status=1
(cd test/rdma && "$build/test-rdma.test" -test.v -test.timeout 8m -test.run "$run") || status=1
exit $status
