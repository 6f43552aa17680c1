#!/usr/bin/env bash
# One fuzz target for a while: fuzz.sh 30s ./event FuzzDecode. One line when it is done; everything that it said when it failed.
set -uo pipefail
time=$1 package=$2 target=$3
# Minimizing what is merely interesting would take the time that is there for looking.
if out=$(go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 2s -parallel 1 "$package" < /dev/null 2>&1) &&
	grep -q '^fuzz: elapsed' <<< "$out"; then # go test is content, too, where there is no such target, or it is skipped
	echo "$target in $package: $(grep -o 'execs: [0-9]*' <<< "$out" | tail -1)"
# Before Go 1.27 the end of -fuzztime itself is sometimes taken for a failure (golang/go#75804). A failure has an input.
elif grep -q '^ *context deadline exceeded$' <<< "$out" && ! grep -qE 'Failing input written|panic:|_test\.go:' <<< "$out"; then
	echo "$target in $package: $(grep -o 'execs: [0-9]*' <<< "$out" | tail -1)"
else
	echo "$target in $package FAILED"
	echo "$out"
	exit 1
fi
