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
	local code=0 flags=(-count=1 -json -vet=off -timeout 15m -run "$RUN")
	if [ -s "$out/plain" ]; then
		xargs go test -p 2 "${flags[@]}" < "$out/plain" > "$out/plain.json" 2> "$out/plain.err" &
	fi
	[ ! -s "$out/race" ] || xargs go test -race -p 2 -parallel 4 "${flags[@]}" < "$out/race" || code=1
	if [ -s "$out/plain" ]; then
		wait $! || code=1
		cat "$out/plain.json"
		cat "$out/plain.err" >&2
	fi
	return $code
}
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
echo "To repeat:"
# The whole package, if it has not built, has leaked, or has ended in the middle of a test: another one may be to blame.
sed -nE 's/^=== FAIL: ([^ ]+) .*\(unknown\)$/\1 /p; s/^=== FAIL: ([^ ]+) ([^ /]*).*/\1 \2/p' "$out/said" | sort -u |
	while read -r package test; do
		echo "  make test PKG=./$package${test:+ RUN='^$test\$'} $AGAIN"
	done
exit 1
