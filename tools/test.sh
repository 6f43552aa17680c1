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
	local code=0 plain='' flags=(-count=1 -json -vet=off -timeout 15m -run "$RUN")
	if [ -s "$out/plain" ]; then
		xargs go test -p 2 "${flags[@]}" < "$out/plain" > "$out/plain.json" 2> "$out/plain.err" &
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
((code)) || exit 0
cat "$out"/*.json | grep -hoE '"Action":"(run|pass|fail|skip)","Package":"[^"]*","Test":"[^"/]*"' | awk -F '"' '
	{ test = $8 " " $12 } $4 == "run" { runs[test] = 1 } $4 != "run" { delete runs[test] }
	END { for (test in runs) { sub("^github.com/effectonce/effectonce/", "", test); print test } }' > "$out/unfinished"
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
