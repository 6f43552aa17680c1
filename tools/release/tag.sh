#!/usr/bin/env bash
# tag.sh v0.1.0: commits a release, and tags its modules. In this commit our modules require each other by the release's
# version, and the released ones have no replace. HEAD is then that commit. Nothing is pushed, and no branch moves.
#
# How to make a release:
#
# 1. Write the newest version of each set into `released` in migrations/compat_test.go.
# 2. Write the date into the heading of CHANGELOG.md; that section becomes the notes.
#    make release-check VERSION=v0.1.0
# 3. tools/release/tag.sh v0.1.0
# 4. Merge the commit for its history only. TestUpgrade then runs this release's relay beside the current one.
#    git checkout main && git merge --no-ff --strategy ours -m 'merge v0.1.0' v0.1.0
# 5. Push the tags of the modules first: GitHub starts nothing for more than three tags at once. The tag v0.1.0 then
#    starts the workflow that publishes.
#    git push origin main $(git tag --list '*/v0.1.0')
#    git push origin v0.1.0
set -euo pipefail
version=${1-}
if [[ ! $version =~ ^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9a-z.]+)?$ ]]; then
	echo "want a version: tag.sh v0.1.0" >&2
	exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [[ -n $(git status --porcelain) ]]; then
	echo "there are changes that are not committed" >&2
	exit 1
fi
repository=$PWD work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tools/release/env.sh
mapfile -t released < <(grep -v '^#' tools/release/modules)

# Names, like the time, are the parent's: the commit is the same wherever it is made.
for role in AUTHOR COMMITTER; do
	export "GIT_${role}_NAME=$(git log -1 --format=%cn)" "GIT_${role}_EMAIL=$(git log -1 --format=%ce)" \
		"GIT_${role}_DATE=$(git log -1 --format=%cI)"
done
name() { [[ $1 == . ]] && echo "$version" || echo "$1/$version"; }
for module in "${released[@]}"; do
	if git rev-parse -q --verify "refs/tags/$(name "$module")" > /dev/null; then
		echo "there is a tag $(name "$module") already" >&2
		exit 1
	fi
done

git checkout -q --detach
mapfile -t files < <(git ls-files go.mod '*/go.mod')
sed -i -E "s#^((require )?\s*$path\S*) v0\.0\.0\b#\1 $version#" "${files[@]}"
replaces=("${released[@]/#/-dropreplace=$path/}")
for module in "${released[@]}"; do
	go mod edit "${replaces[@]%/.}" "$module/go.mod"
done
git commit -q -a -m "release: $version"
# A go.sum has the checksums of the modules before it, which go takes from their tags.
for module in "${released[@]}"; do
	(cd "$module" && go mod tidy)
	git commit -q -a --amend --no-edit
	git tag -f "$(name "$module")" > /dev/null
done
for module in "${released[@]}"; do
	git tag -f "$(name "$module")" > /dev/null
done
git log -1 --format='%h %s' --stat
