#!/usr/bin/env bash
# check.sh v0.1.0 FOLDER: builds again what build.sh has put into FOLDER, compares, and uses it. What is not for this
# machine's system is built and not run.
set -euo pipefail
version=${1:?a version: check.sh v0.1.0 FOLDER} folder=$(realpath "${2:?a folder}") number=${1#v}
package=${number/-/\~} # in names of packages a tilde comes before a release: 0.1.0~rc1
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
repository=$PWD work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# quietly COMMAND: its output only if it fails.
quietly() {
	"$@" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}
if ! git rev-parse -q --verify "refs/tags/$version" > /dev/null; then
	repository=$work/repository
	git clone -q . "$repository"
	quietly "$repository/tools/release/tag.sh" "$version"
fi

echo "== a second build, in another folder and without the cache of the first"
GOCACHE=$work/cache quietly "$repository/tools/release/build.sh" "$version" "$work/again"
diff -r "$folder" "$work/again"
(cd "$folder" && sha256sum --quiet --check checksums.txt)
echo "equal: $(find "$folder" -type f | wc -l) files"

echo "== go install, and a program of one's own that requires every module"
(
	. tools/release/env.sh
	mkdir "$work/user"
	cp examples/embed/main.go "$work/user/"
	mapfile -t modules < <(grep -v '^#' tools/release/modules)
	cd "$work/user"
	quietly go install "$path/cmd/relay@$version"
	"$GOPATH/bin/relay" version
	quietly go mod init example.com/user
	modules=("${modules[@]/#/$path/}") modules=("${modules[@]%/.}")
	quietly go get "${modules[@]/%/@$version}"
	quietly go mod verify
	quietly go build -o user .
	echo "built with ${#modules[@]} modules"
	quietly go install "$path/cmd/relay-dev@$version"
	for kind in http sql worker; do
		quietly "$GOPATH/bin/relay-dev" init --$kind "$work/$kind"
		cd "$work/$kind"
		quietly go vet ./...
		grep -q "$path $version" go.mod
	done
	echo "relay-dev init writes services that require $version"
)

echo "== the archive, the deb and the rpm"
tar -C "$work" -xzf "$folder/relay_${number}_linux_amd64.tar.gz"
find "$work/relay_${number}_linux_amd64" -type f -printf '%P\n' | sort
dpkg-deb -x "$folder/effectonce-relay_${package}_amd64.deb" "$work/deb"
dpkg-deb -c "$folder/effectonce-relay_${package}_amd64.deb" | awk '$1 !~ /^d/ { print $1, $2, $6 }'
cmp "$work/deb/usr/bin/relay" "$work/relay_${number}_linux_amd64/relay"
"$work/deb/usr/bin/relay" version
if command -v rpm > /dev/null; then
	rpm -qp --qf '[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES}\n]' \
		"$folder/effectonce-relay-$package-1.x86_64.rpm"
fi

echo "== the archive's relay on real servers: load, drain, a kill, an upgrade"
export EFFECTONCE_REQUIRE_KAFKA=1 EFFECTONCE_TEST_RELAY=$work/relay_${number}_linux_amd64/relay
go run ./internal/testenv/stack -- go test -count=1 -timeout 10m -run '^(TestDrain|TestTakeOver|TestUpgrade)$' ./cmd/relay
