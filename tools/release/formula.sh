#!/usr/bin/env bash
# formula.sh v0.1.0 FOLDER: prints the Homebrew formula of the archives in FOLDER.
set -euo pipefail
version=$1 folder=$2
archive() {
	local name=relay_${version#v}_$1.tar.gz sum
	sum=$(sha256sum < "$folder/$name")
	printf '      url "https://github.com/effectonce/effectonce/releases/download/%s/%s"\n      sha256 "%s"\n' \
		"$version" "$name" "${sum%% *}"
}
cat << EOF
class EffectonceRelay < Formula
  desc "Publishes an outbox in Postgres to Kafka, in causal order per key"
  homepage "https://github.com/effectonce/effectonce"
  version "${version#v}"
  license "Apache-2.0"

$(for system in macos:darwin linux:linux; do
	printf '  on_%s do\n' "${system%:*}"
	for cpu in arm:arm64 intel:amd64; do
		printf '    on_%s do\n' "${cpu%:*}"
		archive "${system#*:}_${cpu#*:}"
		printf '    end\n'
	done
	printf '  end\n\n'
done)

  def install
    bin.install "relay"
    man1.install "relay.1.gz"
    bash_completion.install "completions/relay.bash" => "relay"
    zsh_completion.install "completions/_relay"
    fish_completion.install "completions/relay.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/relay version")
  end
end
EOF
