#!/usr/bin/env bash
# notes.sh v0.1.0: prints the version's section of CHANGELOG.md.
set -euo pipefail
version=${1:?a version: notes.sh v0.1.0}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
notes=$(awk -v number="${version#v}" '/^## / { gsub(/[][v]/, "", $2); on = $2 == number; next } on' CHANGELOG.md)
if [[ -z $notes ]]; then
	echo "CHANGELOG.md has no section ## $version" >&2
	exit 1
fi
echo "$notes"
