#!/usr/bin/env bash
# The exported API of each library module, compared by apidiff with that of the last release (the newest tag v*) or of
# SINCE. An incompatible change fails unless tools/api-accepted.txt has its line, and so does a line there that is no
# change.
set -euo pipefail
root=$PWD
since=${SINCE:-$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2> /dev/null || true)}
if [ -z "$since" ]; then
	echo "api: NOT COMPARED: there is no release yet (no tag v*)"
	exit 0
fi
modules=(. idempotency metrics ui watermill)

work=$(mktemp -d)
trap 'git worktree remove --force "$work/old" 2> /dev/null || true; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/old" "$since"
apidiff=$(GOWORK=off go tool -modfile=tools/go.mod -n apidiff)
export_of() { # TREE MODULE FILE
	(cd "$1/$2" && "$apidiff" -m -w "$3" "$(GOWORK=off go list -m)")
}
for module in "${modules[@]}"; do
	[ -e "$work/old/$module/go.mod" ] || continue # new since
	export_of "$work/old" "$module" "$work/old.export"
	export_of "$root" "$module" "$work/new.export"
	"$apidiff" -m -incompatible "$work/old.export" "$work/new.export" 2>&1 | # an error is a line that nobody accepted
		sed "/^Ignoring internal/d; s|^- \(\./\)\?|${module#.} |; s|^ ||"
done | sort -u > "$work/found"
grep -v '^#' tools/api-accepted.txt | sort -u > "$work/accepted" || true

code=0
if comm -23 "$work/found" "$work/accepted" | grep .; then
	echo "api: incompatible with $since: keep the old name (docs/stability.md), or accept it in tools/api-accepted.txt"
	code=1
fi
if comm -13 "$work/found" "$work/accepted" | grep .; then
	echo "api: tools/api-accepted.txt has lines that are no change since $since: delete them"
	code=1
fi
((code)) || echo "api: compatible with $since, $(wc -l < "$work/accepted") changes accepted"
exit $code
