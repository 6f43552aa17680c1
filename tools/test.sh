#!/usr/bin/env bash
# test.sh PACKAGE...: the tests of packages, those of RACED with the race detector; RUN selects by name. A line for each
# package as it ends; at the end each failed test with what it printed, and the commands that repeat them, with AGAIN.
set -euo pipefail
# A folder for each run: another one in this clone must not take this one's results for its own.
mkdir -p .cache && out=$(mktemp -d .cache/test-XXXXXX)
trap 'rm -rf "$out"' EXIT

tested() { go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "$@"; }
tested "$@" | awk '!seen[$0]++' > "$out/all"
{ [ -z "${RACED:-}" ] || tested $RACED; } > "$out/raced"
{ grep -Fx -f "$out/all" "$out/raced" || true; } > "$out/race" # in the order of RACED: the longest first
{ grep -vFx -f "$out/raced" "$out/all" || true; } > "$out/plain"

# Both at once: one compiles and waits while the other computes. `make lint` has vetted. No result is an earlier run's:
# go test does not notice a change of what a test reads outside of its module, or by git and go.
both() {
	# By night whole enumerations run.
	local limit=${EFFECTONCE_NIGHTLY:+3h}
	local code=0 plain='' flags=(-count=1 -json -vet=off -timeout "${limit:-15m}" -run "$RUN")
	if [ -s "$out/plain" ]; then
		xargs go test -p 2 -parallel 3 "${flags[@]}" < "$out/plain" > "$out/plain.json" 2> "$out/plain.err" &
		plain=$!
	fi
	[ ! -s "$out/race" ] || xargs go test -race -p 2 -parallel 4 "${flags[@]}" < "$out/race" || code=1
	if [ -n "$plain" ]; then
		wait "$plain" || code=1
		cat "$out/plain.json"
		cat "$out/plain.err" >&2
	fi
	return $code
}
if [ -s "$out/race" ] && [ -s "$out/plain" ]; then
	echo "Packages with the race detector: $(wc -l < "$out/race"). Behind their lines, those without it: $(wc -l < "$out/plain")."
fi
export -f both
export out RUN
code=0
GOWORK=off go tool -modfile=tools/go.mod -n gotestsum > "$out/gotestsum"
"$(cat "$out/gotestsum")" --format pkgname --format-icons text --jsonfile "$out/results.json" \
	--raw-command bash -c both 2>&1 | tee "$out/said" || code=$?
if ! grep -q '"Action":"run"' "$out/results.json" && ((code == 0)); then
	echo "no test of $* is named by RUN='$RUN'"
	exit 1
fi
# What ran when a binary ended. Of the tests that waited for their turn none is to blame.
{ grep -hoE '"Action":"[^"]*","Package":"[^"]*","Test":"[^"/]*"' "$out"/*.json || true; } | awk -F '"' '
	{ test = $8 " " $12 } $4 ~ /^(run|cont)$/ { runs[test] = 1 } $4 ~ /^(pause|pass|fail|skip)$/ { delete runs[test] }
	END { for (test in runs) { sub("^github.com/effectonce/effectonce/", "", test); print test } }' > "$out/unfinished"
# A TestMain decides on the exit code: it may be 0 though a test has failed, or before any has run. And a binary may end
# with 0 in the midst of a test: go test takes that for the test's end, and then the package has none.
if ((code == 0)) && [ "$RUN" = . ]; then
	awk -F '"' 'NR == FNR { all[$0]; next } $8 == "run" { ran[$12] } $8 == "pass" && $14 == "Elapsed" { passed[$12] }
		END { for (p in all) if (!(p in ran && p in passed)) {
			sub("^github.com/effectonce/effectonce/", "=== FAIL: ", p); print p " has not run its tests (unknown)" } }' \
		"$out/all" "$out/results.json" | tee -a "$out/said"
fi
((code)) || [ -s "$out/unfinished" ] || grep -q '^=== FAIL' "$out/said" || exit 0
if [ -s "$out/unfinished" ] && [ -s "${EFFECTONCE_TEST_DATABASE_LOG:-}" ]; then
	echo "Tests have not ended. Errors that Postgres logged last:"
	grep -E ' (ERROR|FATAL|PANIC): ' "$EFFECTONCE_TEST_DATABASE_LOG" | tail -n 20
fi
echo "To repeat:"
# A package without a test, if it has not built, has leaked, or has ended in the middle of a test: another one may be to
# blame.
sed -nE 's/^=== FAIL: ([^ ]+) .*\(unknown\)$/\1 /p; s/^=== FAIL: ([^ ]+) ([^ /]*).*/\1 \2/p' "$out/said" |
	sort -u - "$out/unfinished" | awk 'NF > 1 { print; next } { last[NR] = $0 } END { for (i in last) print last[i] }' |
	while read -r package test; do
		if [ -n "$test" ]; then run="^$test\$"; else run=${RUN#.}; fi
		echo "  make test PKG=./$package${run:+ RUN='$run'} $AGAIN"
	done
exit 1
