#!/usr/bin/env bash
# nightly.sh [STEP...]: what .ci/run has no time for, all of it or some steps; --list names them, as JSON, for the
# workflow. Every step is run, and a summary at the end says how long each took, why it failed, and how to repeat it.
# SOAK is the length of each soak, 20m. On two cores all of it takes about five hours.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/steps.sh
export EFFECTONCE_REQUIRE_KAFKA=1 EFFECTONCE_REQUIRE_REDIS=1 EFFECTONCE_REQUIRE_DYNAMODB=1 EFFECTONCE_REQUIRE_PGBOUNCER=1 \
	EFFECTONCE_REQUIRE_CHROMIUM=1
soak=${SOAK:-20m}

steps=(
	"vuln: make vuln"
	"systems: make vet-others"
	"race: make test RACED=work" # every package with the race detector, and the pages in both themes
	"models: make models"
	"bugs: make bugs"
	"mutants: make mutants"
	"fuzz: make fuzz FUZZTIME=1m"
	"bench: make bench-smoke"
	"interop: make interop"
	"debezium: make debezium"
	"oldest: make matrix CORNERS=15.19.0/3.3.2"
	"old-new: make matrix CORNERS=15.19.0/4.3.1"
	"new-old: make matrix CORNERS=18.6.0/3.3.2"
	"newest: make matrix CORNERS=18.6.0/4.3.1"
	"between-16: make matrix CORNERS=16.15.0/3.9.2"
	"between-17: make matrix CORNERS=17.11.0/4.1.0"
	"soak: make soak DURATION=$soak"
	"soak-watermark: make soak DURATION=$soak DEDUP=watermark"
	"soak-wal: make soak DURATION=$soak SOURCE=wal"
	"compose: make compose"
	"first-hour: make first-hour"
	"charts: make charts"
	"site: make site-seen"
	"release: make release-check image image-check VERSION=v0.1.0-nightly"
)
names=("${steps[@]%%: *}")
if [[ ${1-} == --list ]]; then
	printf '"%s"\n' "${names[@]}" | paste -sd, | sed 's/.*/[&]/'
	exit
fi
for name in "$@"; do
	if [[ " ${names[*]} " != *" $name "* ]]; then
		echo "no step is named $name; there are ${names[*]}" >&2
		exit 2
	fi
done
step install .ci/install nightly
for i in "${!steps[@]}"; do
	if (($# == 0)) || [[ " $* " == *" ${names[i]} "* ]]; then
		read -ra command <<< "${steps[i]#*: }"
		step "${names[i]}" "${command[@]}" EFFECTONCE_NIGHTLY=1
	fi
done
steps_end
