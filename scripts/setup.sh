#!/bin/bash
# Installs what the tests need beyond Go: metadata services, libraries of the Mooncake wheel, a C
# compiler for the race detector, the wheel itself and what plugins in Python need, each in a virtual
# environment of its own. Only what
# is missing is installed, so a second run takes a moment. With CI=true anything that cannot be
# installed is an error; otherwise it is reported and the tests that need it are skipped by name.
set -u
cd "$(dirname "$0")/.."

wheel=mooncake-transfer-engine-non-cuda
version=0.3.13.post1
cache=${MOONCAKE_CACHE:-$PWD/.cache}
venv=$cache/wheel-$version
export PATH=$PATH:/usr/sbin:/sbin

problem() {
	echo "setup: $*" >&2
	case "${CI:-}" in
	true | 1) exit 1 ;;
	esac
}

# --- Debian packages -------------------------------------------------------------------------

packages=()
command_of() { command -v "$1" >/dev/null || packages+=("$2"); }
library_of() { [[ $libraries == *"$1 "* ]] || packages+=("$2"); }

libraries=$(ldconfig -p 2>/dev/null | awk '{printf "%s ", $1}')
command_of etcd etcd-server
command_of redis-server redis-server
command_of iperf3 iperf3
command_of ip iproute2
command_of git git
library_of libibverbs.so.1 libibverbs1
library_of librdmacm.so.1 librdmacm1
library_of libnuma.so.1 libnuma1
library_of libcurl.so.4 libcurl4
# The race detector needs cgo.
if ! command -v "${CC:-gcc}" >/dev/null || ! [ -e /usr/include/stdlib.h ]; then
	packages+=(gcc libc6-dev)
fi
[ -e /usr/include/infiniband/verbs.h ] || packages+=(libibverbs-dev) # whose layouts a test compares with ours

# The wheel is built for CPython 3.8 to 3.13.
python=
for p in "${PYTHON:-python3}" /usr/bin/python3; do
	if "$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
		python=$p
		break
	fi
done
[ -n "$python" ] || packages+=(python3 python3-venv)

if [ ${#packages[@]} -gt 0 ]; then
	sudo=()
	[ "$(id -u)" = 0 ] || sudo=(sudo)
	echo "setup: installing ${packages[*]}"
	# RUNLEVEL=1 and the masks keep Debian from starting the services on their default ports: the
	# tests start their own. A service that was there before is left alone.
	services=()
	for p in "${packages[@]}"; do
		case $p in
		etcd-server) services+=(etcd) ;;
		redis-server) services+=(redis-server) ;;
		esac
	done
	systemd() { [ ! -d /run/systemd/system ] || [ ${#services[@]} = 0 ] || "${sudo[@]}" systemctl "$@" "${services[@]}"; }
	apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -q -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@"; }
	if ! command -v apt-get >/dev/null; then
		problem "no apt-get here; install by hand: ${packages[*]}"
	else
		log=$(mktemp)
		systemd mask --runtime
		if ! { apt update && apt install -y --no-install-recommends "${packages[@]}"; } >"$log" 2>&1; then
			tail -n 20 "$log" >&2
			problem "apt-get could not install ${packages[*]}"
		fi
		rm -f "$log"
		systemd unmask --runtime
		systemd disable --now
		if [ ! -d /run/systemd/system ]; then
			for s in "${services[@]}"; do
				[ ! -x "/etc/init.d/$s" ] || "${sudo[@]}" "/etc/init.d/$s" stop >/dev/null 2>&1 || true
			done
		fi
	fi
	[ -n "$python" ] || python=/usr/bin/python3
fi

# --- The wheel ---------------------------------------------------------------------------------

usable() { "$venv/bin/python" -c 'import mooncake.engine' 2>&1; }

if [ -n "${MOONCAKE_WHEEL_PYTHON:-}" ]; then
	"$MOONCAKE_WHEEL_PYTHON" -c 'import mooncake.engine' ||
		problem "MOONCAKE_WHEEL_PYTHON=$MOONCAKE_WHEEL_PYTHON has no usable $wheel"
elif [ ! -e "$venv/.complete" ] || ! usable >/dev/null; then
	echo "setup: installing $wheel $version into $venv"
	rm -rf "$venv"
	mkdir -p "$cache"
	if "$python" -m venv "$venv" &&
		"$venv/bin/pip" install -q --disable-pip-version-check --retries 5 "$wheel==$version"; then
		if why=$(usable); then
			touch "$venv/.complete"
		else
			problem "the wheel cannot be imported: $why"
		fi
	else
		problem "$wheel $version could not be installed with $python"
	fi
fi
# --- Plugins in Python ---------------------------------------------------------------------------

# What plugins/sdk/python needs, in an environment of its own.
plugins=$cache/plugin-python
needs=plugins/sdk/python/requirements.txt
works() { "$plugins/bin/python" -c 'import cryptography, google.protobuf, grpc' 2>&1; }

if ! cmp -s "$needs" "$plugins/.complete" || ! works >/dev/null; then
	echo "setup: installing what plugins in Python need into $plugins"
	rm -rf "$plugins"
	mkdir -p "$cache"
	if "$python" -m venv "$plugins" &&
		"$plugins/bin/pip" install -q --disable-pip-version-check --retries 5 -r "$needs"; then
		if why=$(works); then
			cp "$needs" "$plugins/.complete"
		else
			problem "the libraries for plugins in Python cannot be imported: $why"
		fi
	else
		problem "$(tr '\n' ' ' <"$needs")could not be installed with $python"
	fi
fi
exit 0
