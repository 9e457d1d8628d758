#!/bin/bash
# Builds the example policies: scripts/plugins.sh OUTDIR. Each is built as a user's project is: the library of its
# language and the Makefile beside one file of source. With CI=true an example that cannot be built is an error;
# otherwise one whose compiler is missing is named and left out.
set -eu
cd "$(dirname "$0")/.."
out=${1:?usage: scripts/plugins.sh OUTDIR}
cache=${MOONCAKE_CACHE:-$PWD/.cache}
asc_version=$(sed -n 's/.*assemblyscript@//p' plugins/sdk/assemblyscript/Makefile)
asc=$cache/asc-$asc_version/node_modules/.bin/asc
work=$cache/plugins
mkdir -p "$out" "$work"
out=$(cd "$out" && pwd)

missing() {
	echo "plugins: $1 is not built: $2 is missing (scripts/setup-plugins.sh installs it)" >&2
	case "${CI:-}" in
	true | 1) exit 1 ;;
	esac
}

# project LANGUAGE SOURCE NAME [make arguments]
project() {
	local lang=$1 source=$2 name=$3 dir=$work/$3
	shift 3
	rm -rf "$dir"
	mkdir -p "$dir"
	cp -r "plugins/sdk/$lang/." "$dir"
	cp "$source" "$dir/$name.${source##*.}"
	make -s -C "$dir" NAME="$name" "$@"
	cp "$dir/$name.wasm" "$out/$name.wasm"
}

for src in plugins/examples/*/*; do
	case $src in plugins/examples/external-*) continue ;; esac # programs of their own
	name=$(basename "$(dirname "$src")")
	case $src in
	*.c)
		command -v clang-22 >/dev/null && command -v wasm-ld-22 >/dev/null || { missing "$name" clang-22; continue; }
		project c "$src" "$name"
		;;
	*.rs)
		[ -x /usr/bin/rustc ] && [ -x /usr/bin/wasm-ld-14 ] && [ -d /usr/lib/rustlib/wasm32-unknown-unknown ] ||
			{ missing "$name" "Debian's rustc with its library for wasm32"; continue; }
		project rust "$src" "$name"
		;;
	*.ts)
		[ -x "$asc" ] || { missing "$name" AssemblyScript; continue; }
		project assemblyscript "$src" "$name" ASC="$asc"
		;;
	*.go)
		# In the module that it is part of.
		GOOS=wasip1 GOARCH=wasm CGO_ENABLED=0 "${GO:-go}" build -buildvcs=false -trimpath -buildmode=c-shared -ldflags='-s -w' -o "$out/$name.wasm" "./${src%/*}"
		;;
	*.wat)
		command -v wat2wasm >/dev/null || { missing "$name" wat2wasm; continue; }
		wat2wasm -o "$out/$name.wasm" "$src"
		;;
	*) continue ;;
	esac
	echo "plugins: $out/$name.wasm $(stat -c %s "$out/$name.wasm") bytes"
done
