#!/usr/bin/env bash
# nightly.sh [STEP...]: what .ci/run has no time for, all of it or some steps; --list names them, as JSON, for the
# workflow. Every step is run, and a summary at the end says how long each took, why it failed, and how to repeat it.
# The commit draws half of the bugs, a sixth of Kafka's false answers, two pairs of servers for the rules, one for the
# proof, and the kind of the soak, so that all of it takes two hours on two cores. ALL=1 draws nothing: seven hours. SOAK is
# the length of a soak, 10m.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/steps.sh
export EFFECTONCE_REQUIRE_KAFKA=1 EFFECTONCE_REQUIRE_REDIS=1 EFFECTONCE_REQUIRE_DYNAMODB=1 EFFECTONCE_REQUIRE_PGBOUNCER=1 \
	EFFECTONCE_REQUIRE_CHROMIUM=1
soak=${SOAK:-10m}

seed=$((0x$(git rev-parse --short=7 HEAD)))
corners=(15.19.0/3.3.2 15.19.0/4.3.1 18.6.0/3.3.2 18.6.0/4.3.1 16.15.0/3.9.2 17.11.0/4.1.0)
soaks=(
	"soak: make soak DURATION=$soak"
	"soak-watermark: make soak DURATION=$soak DEDUP=watermark"
	"soak-wal: make soak DURATION=$soak FEED=wal"
)
rules=$(IFS=,; echo "${corners[*]}") proof=$rules part=
if [[ -n ${ALL-} ]]; then
	export EFFECTONCE_ANSWERS=.
else
	# Not the gate's own pair, which is the seed modulo 4.
	rules=${corners[(seed + 2) % 4]},${corners[4 + seed / 4 % 2]} proof=${corners[seed / 8 % 6]}
	soaks=("${soaks[seed / 16 % 3]}") part=PART=$((seed / 32 % 2 + 1))/2
fi

steps=(
	"vuln: make vuln"
	"systems: make vet-others"
	"whole: make whole"          # whole enumerations, and the pages in both themes
	"race: make test RACED=work" # every package, in the sizes of the gate
	"models: make models"
	"bugs: make bugs $part"
	"mutants: make mutants"
	"fuzz: make fuzz FUZZTIME=1m"
	"bench: make bench-smoke"
	"costs: make bench-check"
	"interop: make interop"
	"debezium: make debezium"
	"rules: make matrix PARTS=rules CORNERS=$rules"
	"proof: make matrix PARTS=proof CORNERS=$proof"
	"${soaks[@]}"
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
		[[ ${names[i]} == race ]] || command+=(EFFECTONCE_NIGHTLY=1)
		step "${names[i]}" "${command[@]}"
	fi
done
steps_end
