#!/usr/bin/env bash
# govulncheck over all modules. A finding fails; a database that cannot be reached is one line and no failure, for it says nothing
# about the code. The database: https://vuln.go.dev, or GOVULNDB (a directory works: file:///...).
set -uo pipefail
root=$PWD
for module in . cmd/relay internal/service metrics ui idempotency idempotency/dynamostore idempotency/redisstore watermill internal/verify bench deploy; do
	out=$(cd "$module" && GOWORK=off go tool -modfile="$root/tools/vuln.mod" govulncheck ./... 2>&1)
	code=$?
	if ((code == 0)); then
		echo "govulncheck $module: nothing known"
	elif ((code == 3)); then
		echo "$out"
		exit 1
	elif grep -qiE 'fetching vulnerabilities|vuln\.go\.dev|dial tcp|no such host|connection refused|timeout|proxyconnect|403|i/o' <<< "$out"; then
		echo "govulncheck: NOT CHECKED: the vulnerability database (${GOVULNDB:-https://vuln.go.dev}) cannot be reached from here"
		exit 0
	else
		echo "$out"
		exit 1
	fi
done
