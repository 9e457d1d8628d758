#!/bin/sh
# usage: fuzz.sh TIME
# Runs every fuzz target of the module for TIME, one after the other, and stops at the first finding
# (go test leaves the input in the package's testdata/fuzz).
set -eu
cd "$(dirname "$0")/.."
time=$1
grep -rE --include='*_test.go' -o '^func Fuzz[A-Za-z0-9_]*' . | sort | while IFS=: read -r file func; do
	name=${func#func }
	echo "fuzz $(dirname "$file") $name"
	go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$(dirname "$file")" ||
		{ echo "fuzz: $name in $(dirname "$file") failed" >&2; exit 1; }
done
