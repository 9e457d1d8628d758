#!/bin/bash
# Rebuilds testdata/modules with the Debian packages wabt and binaryen: NAME.wasm from wat/NAME.wat, and fuzzN.wasm, which
# wasm-opt made from random bytes (these stay as they are with the argument "own"). Beside each lies what a second opinion needs, made by wabt alone:
# NAME.counted.wasm is the same module with a call before each instruction, to a function that adds one
# to the exported global "counted"; counts.txt has the number of instructions in each module.
set -eu
cd "$(dirname "$0")"
modules=30
features="--enable-bulk-memory --enable-simd --enable-sign-ext --enable-nontrapping-float-to-int --enable-multivalue
	--enable-reference-types --enable-mutable-globals"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

rm -f modules/*.counted.wasm modules/counts.txt
for f in wat/*.wat; do
	name=$(basename "$f" .wat)
	wat2wasm --debug-names "$f" -o "modules/$name.wasm"
done

if [ "${1:-}" = own ]; then made=$modules; else made=0 && rm -f modules/fuzz*.wasm; fi

# Seeds whose module needs more than WebAssembly 2.0 are left out.
seed=0
while [ $made -lt $modules ]; do
	seed=$((seed + 1))
	python3 -c 'import random, sys; r = random.Random(int(sys.argv[1])); sys.stdout.buffer.write(r.randbytes(r.randrange(3000, 15000)))' $seed >"$tmp/seed"
	# shellcheck disable=SC2086
	wasm-opt -ttf $features -o "$tmp/fuzz.wasm" "$tmp/seed" 2>/dev/null || continue
	wasm-validate "$tmp/fuzz.wasm" 2>/dev/null || continue
	cp "$tmp/fuzz.wasm" "modules/fuzz$seed.wasm"
	made=$((made + 1))
done

# One instruction a line: the lines of functions that are no declaration, else or end.
for f in modules/*.wasm; do
	name=$(basename "$f" .wasm)
	wasm2wat --no-debug-names "$f" >"$tmp/plain.wat"
	awk -v name="$name" -v counts="$tmp/counts" '
		function flush() { if (last != "") print last; last = "" }
		/^  \(func / { inside = 1 }
		/^  \((table|memory|global|export|start|elem|data|type|import)/ { inside = 0 }
		/^\(module/ || /^  \(type/ { print; next }
		{
			word = $1; sub(/\)+$/, "", word)
			if (inside && $0 ~ /^    / && word !~ /^\(/ && word != "end" && word != "else" && word != "") {
				n++
				flush()
				print "    call $count"
			}
			flush()
			last = $0
		}
		END {
			# The last line closes the module.
			sub(/\)$/, "", last)
			print last
			print "  (global $counted (export \"counted\") (mut i64) (i64.const 0))"
			print "  (func $count global.get $counted i64.const 1 i64.add global.set $counted))"
			print name, n >> counts
		}' "$tmp/plain.wat" >"$tmp/counted.wat"
	wat2wasm "$tmp/counted.wat" -o "modules/$name.counted.wasm"
done
sort "$tmp/counts" >modules/counts.txt
