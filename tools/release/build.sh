#!/usr/bin/env bash
# build.sh v0.1.0 FOLDER: makes the artefacts of a release. Without its tags it makes them itself, in a clone of HEAD.
set -euo pipefail
umask 022
version=${1:?a version: build.sh v0.1.0 FOLDER} folder=$(realpath -m "${2:?a folder}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=$PWD/tools/release repository=$PWD work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! git rev-parse -q --verify "refs/tags/$version" > /dev/null; then
	repository=$work/repository
	git clone -q . "$repository"
	"$repository/tools/release/tag.sh" "$version"
fi
mkdir -p "$work/tools" "$work/src" "$folder"
(cd tools && GOWORK=off CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$work/tools/" \
	github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod github.com/goreleaser/nfpm/v2/cmd/nfpm)
. "$tools/env.sh"
git -C "$repository" archive "$version" LICENSE README.md deploy/systemd tools/release |
	tar -x --no-same-permissions -C "$work/src"
SOURCE_DATE_EPOCH=$(git -C "$repository" log -1 --format=%ct "$version")
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C

# What `go install` makes, of the modules that users get. No DWARF: a third of the size. The symbols stay, for
# profilers, and for govulncheck -mode=binary.
for platform in {linux,darwin,windows}/{amd64,arm64}; do
	out=$work/bin/${platform/\//_}
	mkdir -p "$out"
	CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/} go install -trimpath -ldflags=-w "$path/cmd/relay@$version"
	find "$work/go/bin" -type f -exec mv {} "$out/" \;
	chmod 755 "$out"/*
done
host=$work/bin/$(go env GOHOSTOS)_$(go env GOHOSTARCH)/relay

shared=$work/shared
mkdir -p "$shared/completions"
cp "$work/src/LICENSE" "$work/src/README.md" "$shared/"
"$host" completion bash > "$shared/completions/relay.bash"
"$host" completion zsh > "$shared/completions/_relay"
"$host" completion fish > "$shared/completions/relay.fish"
"$host" completion powershell > "$shared/completions/relay.ps1"
"$host" man | gzip -n -9 > "$shared/relay.1.gz"
# The licences of what is linked, which want to be in copies of a binary.
for binary in "$work"/bin/*/*; do go version -m "$binary"; done | awk '$1 == "dep" { print $2 "@" $3 }' | sort -u |
	grep -v "^$path[/@]" | while read -r module; do
	printf '\n===== %s\n\n' "$module"
	find "$GOMODCACHE/$(sed 's/[A-Z]/!\l&/g' <<< "$module")" -maxdepth 1 \
		-iregex '.*/\(license\|licence\|copying\|notice\)[^/]*' | sort | xargs cat
done > "$shared/THIRD-PARTY-LICENSES"
(printf '===== Go\n\n' && cat "$(go env GOROOT)/LICENSE") >> "$shared/THIRD-PARTY-LICENSES"

for binary in "$work"/bin/*/*; do
	name=relay_${version#v}_$(basename "$(dirname "$binary")")
	cp -r "$shared" "$work/$name"
	cp "$binary" "$work/$name/"
	find "$work/$name" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
	if [[ $binary == *.exe ]]; then
		rm -f "$folder/$name.zip"
		(cd "$work" && find "$name" -type f | sort | zip -q -X -D "$folder/$name.zip" -@)
	else
		tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --format=ustar -c "$name" |
			gzip -n -9 > "$folder/$name.tar.gz"
	fi
	"$work/tools/cyclonedx-gomod" bin -json -noserial -std -version "$version" "$binary" |
		sed "s/\"timestamp\": \"[^\"]*\"/\"timestamp\": \"$(date -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)\"/" \
			> "$folder/$name.cdx.json"
done

for arch in amd64 arm64; do
	for format in deb rpm; do
		(cd "$work" && ARCH=$arch VERSION=$version "$work/tools/nfpm" package -f src/tools/release/nfpm.yaml -p $format \
			-t "$folder" > /dev/null)
	done
done
"$tools/formula.sh" "$version" "$folder" > "$folder/effectonce-relay.rb"
(cd "$folder" && sha256sum -- * > "$work/checksums.txt" && mv "$work/checksums.txt" .)
