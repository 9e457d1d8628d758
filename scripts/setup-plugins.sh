#!/bin/bash
# Installs the compilers for eviction policies as WebAssembly guests: clang for C, rustc for Rust, wabt for WebAssembly
# text from Debian, AssemblyScript from npm into the cache. (Go is there.) What is there is kept, so a second run
# takes a moment. With CI=true anything that cannot be installed is an error; otherwise it is reported, and
# "make plugins" leaves out the examples in that language.
set -u
cd "$(dirname "$0")/.."

asc_version=$(sed -n "s/.*assemblyscript@//p" plugins/sdk/assemblyscript/Makefile)
cache=${MOONCAKE_CACHE:-$PWD/.cache}

problem() {
	echo "setup-plugins: $*" >&2
	case "${CI:-}" in
	true | 1) exit 1 ;;
	esac
}

packages=()
clang=$(command -v clang-22 || true)
[ -n "$clang" ] && command -v wasm-ld-22 >/dev/null || packages+=(clang-22 lld-22)
# Debian's rustc, whatever rustup has: only with it comes a standard library for wasm32 as a package. Its linker has
# to be of its own LLVM version.
[ -x /usr/bin/rustc ] || packages+=(rustc)
[ -d /usr/lib/rustlib/wasm32-unknown-unknown/lib ] || packages+=(libstd-rust-dev-wasm32)
[ -x /usr/bin/wasm-ld-14 ] || packages+=(lld-14)
command -v wat2wasm >/dev/null || packages+=(wabt)
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || packages+=(npm)

if [ ${#packages[@]} -gt 0 ]; then
	sudo=()
	[ "$(id -u)" = 0 ] || sudo=(sudo)
	apt() {
		"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"
	}
	if ! command -v apt-get >/dev/null; then
		problem "no apt-get here; install by hand: ${packages[*]}"
	else
		echo "setup-plugins: installing ${packages[*]}"
		log=$(mktemp)
		apt update >"$log" 2>&1 || true # the lists that are there may do
		# One by one, so that one that cannot be had does not keep back the others.
		for p in "${packages[@]}"; do
			if ! apt install -y --no-install-recommends "$p" >>"$log" 2>&1; then
				tail -n 5 "$log" >&2
				problem "apt-get could not install $p"
			fi
		done
		rm -f "$log"
	fi
fi

asc=$cache/asc-$asc_version
if ! [ -e "$asc/.complete" ]; then
	if ! command -v npm >/dev/null; then
		problem "no npm: AssemblyScript cannot be installed"
	else
		echo "setup-plugins: installing assemblyscript $asc_version into $asc"
		rm -rf "$asc"
		mkdir -p "$asc"
		if npm install --prefix "$asc" --no-save --no-audit --no-fund --silent "assemblyscript@$asc_version" &&
			"$asc/node_modules/.bin/asc" --version >/dev/null; then
			touch "$asc/.complete"
		else
			problem "npm could not install assemblyscript $asc_version"
		fi
	fi
fi
exit 0
