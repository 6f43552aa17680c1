#!/usr/bin/env bash
# image.sh v0.1.0 ARCHIVES IMAGE: relay's image for amd64 and arm64, of the binaries in the release's ARCHIVES, as the
# folder IMAGE, which skopeo and podman read (dir:). It is the stage relay of the Containerfile, whose stage build is
# replaced by a folder. buildah, skopeo and jq need no engine and no root. The same archives, buildah and
# ca-certificates give the same digest.
set -euo pipefail
usage='image.sh v0.1.0 ARCHIVES IMAGE'
version=${1:?$usage} archives=$(realpath "${2:?$usage}") out=$(realpath -m "${3:?$usage}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
commit=$(git rev-parse -q --verify "$version^{commit}" || git rev-parse HEAD)
work=$(mktemp -d)
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT
store=(--root "$work/store" --runroot "$work/run" --storage-driver vfs)

for arch in amd64 arm64; do
	stage=$work/$arch
	mkdir -p "$stage/out" "$stage/etc/ssl/certs"
	archive=relay_${version#v}_linux_$arch
	tar -xzf "$archives/$archive.tar.gz" -C "$stage/out" --strip-components=1 "$archive/relay"
	# Debian's, without those that somebody has added to this machine.
	cat /usr/share/ca-certificates/mozilla/*.crt > "$stage/etc/ssl/certs/ca-certificates.crt"
	chmod -R u=rwX,go=rX "$stage"
	# In Docker's format, for OCI's has no HEALTHCHECK. Nothing is run in it: no isolation is needed.
	buildah "${store[@]}" build --quiet --format docker --isolation chroot --identity-label=false \
		--timestamp "$(git log -1 --format=%ct "$commit")" --build-context "build=$stage" --target relay \
		--label "org.opencontainers.image.version=$version" \
		--label "org.opencontainers.image.revision=$commit" \
		--platform "linux/$arch" --manifest relay --file deploy/compose/Containerfile "$stage" > /dev/null
done
buildah "${store[@]}" manifest push --quiet --all --format v2s2 relay "dir:$work/pushed"
rm -rf "$out"
skopeo copy --quiet --all --dest-compress "dir:$work/pushed" "dir:$out"

# buildah writes the names of its containers into the configuration, which are random. Without them the configuration has
# another digest, the manifest that names it too, and so has the list of manifests.
put() { # FILE SUFFIX: moves a file into the image, and sets digest and size
	digest=$(sha256sum < "$1" | cut -d' ' -f1) size=$(stat -c %s "$1")
	mv "$1" "$out/$digest$2"
}
name() { # OLD FILE: names digest and size in place of the file OLD
	jq -cj --arg old "sha256:$1" --arg digest "sha256:$digest" --argjson size "$size" \
		'(.. | objects | select(.digest == $old)) |= (.digest = $digest | .size = $size)' "$2" > "$work/named"
	mv "$work/named" "$2"
}
for manifest in "$out"/*.manifest.json; do
	config=$(jq -r '.config.digest | ltrimstr("sha256:")' "$manifest")
	jq -cj 'del(.container, .container_config, .parent, .config.Hostname, .history[].comment)' "$out/$config" > "$work/config"
	rm "$out/$config"
	put "$work/config" ""
	name "$config" "$manifest"
	put "$manifest" .manifest.json
	name "$(basename "$manifest" .manifest.json)" "$out/manifest.json"
done
echo "$out: relay $version, sha256:$(sha256sum < "$out/manifest.json" | cut -d' ' -f1)"
