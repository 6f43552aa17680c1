#!/usr/bin/env bash
# govulncheck over all modules. A finding fails. A database that cannot be reached says nothing about the code: it is
# named, and fails only with EFFECTONCE_REQUIRE_VULN=1. The database: https://vuln.go.dev, or GOVULNDB (a directory
# works: file:///...).
set -euo pipefail
root=$PWD
found=()
listed=$(go list -m -f '{{.Dir}}')
mapfile -t folders <<< "$listed"
for folder in "${folders[@]}"; do
	module=${folder#"$root"} module=${module#/}
	code=0
	out=$(cd "$folder" && GOWORK=off go tool -modfile="$root/tools/vuln.mod" govulncheck ${GOVULNDB:+-db "$GOVULNDB"} ./... \
		2>&1) || code=$?
	if ((code == 0)); then
		echo "govulncheck ${module:-.}: nothing known"
	elif ((code == 3)); then
		echo "$out"
		found+=("${module:-.}")
	elif grep -qiE 'fetching vulnerabilities|dial tcp|: no such host|: i/o timeout' <<< "$out"; then
		echo "govulncheck: NOT CHECKED: the vulnerability database (${GOVULNDB:-https://vuln.go.dev}) cannot be reached from here"
		((${#found[@]})) || exit "${EFFECTONCE_REQUIRE_VULN:-0}"
		break
	else
		echo "$out"
		exit 1
	fi
done
if ((${#found[@]})); then
	echo "known vulnerabilities in: ${found[*]}"
	exit 1
fi
