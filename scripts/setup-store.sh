#!/bin/bash
# Installs six older releases of the Mooncake wheel, each without dependencies in a virtual environment of its
# own, for the tests of the Store master ("make test-interop"; the newest is setup.sh's). What is there and can be imported is kept, so
# a second run takes a moment. With CI=true anything that cannot be installed is an error; otherwise
# it is reported and the tests that need it are skipped by name.
set -u
cd "$(dirname "$0")/.."

wheel=mooncake-transfer-engine-non-cuda
versions=(0.3.7.post2 0.3.8.post1 0.3.9 0.3.10.post2 0.3.11.post1 0.3.12.post1)
cache=${MOONCAKE_CACHE:-$PWD/.cache}

problem() {
	echo "setup-store: $*" >&2
	case "${CI:-}" in
	true | 1) exit 1 ;;
	esac
}

# System libraries and the Python to use are the business of setup.sh.
scripts/setup.sh || exit

mkdir -p "$cache"
exec 9>"$cache/store-wheels.lock"
flock 9

python=
for p in "${PYTHON:-python3}" /usr/bin/python3; do
	if "$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
		python=$p
		break
	fi
done

# 0.3.12.post1 is linked with the CUDA runtime although it is the build without CUDA.
needs_cuda() { [ "$1" = 0.3.12.post1 ]; }

usable() {
	local libs=
	if needs_cuda "$1"; then
		libs=$("$2/bin/python" -c 'import nvidia.cuda_runtime as m; print(list(m.__path__)[0] + "/lib")' 2>&1) || {
			echo "$libs"
			return 1
		}
	fi
	LD_LIBRARY_PATH=$libs "$2/bin/python" -c 'import mooncake.store' 2>&1
}

for v in "${versions[@]}"; do
	venv=$cache/store-wheel-$v
	if [ -e "$venv/.complete" ] && usable "$v" "$venv" >/dev/null; then
		continue
	fi
	if [ -z "$python" ]; then
		problem "no Python 3.8 to 3.13 with venv for $wheel $v"
		continue
	fi
	echo "setup-store: installing $wheel $v into $venv"
	rm -rf "$venv"
	packages=("$wheel==$v")
	! needs_cuda "$v" || packages+=(nvidia-cuda-runtime-cu12==12.9.79)
	if ! "$python" -m venv "$venv" ||
		! "$venv/bin/pip" install -q --disable-pip-version-check --retries 5 --no-deps "${packages[@]}"; then
		problem "$wheel $v could not be installed with $python"
	elif why=$(usable "$v" "$venv"); then
		touch "$venv/.complete"
	else
		problem "$wheel $v cannot be imported: $why"
	fi
done
exit 0
