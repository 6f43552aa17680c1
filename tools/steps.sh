# Sourced. `step NAME COMMAND...` runs a step; `steps_end` prints how long each took, and what it says it has NOT CHECKED,
# and exits: with 1 if one failed, and then the last lines are what it said and the command that repeats it.
mkdir -p .cache/steps
# What a shell may have exported for one test must not make a gate smaller; MAKEFLAGS would let make ignore errors, and
# hands on what make was called with.
unset PKG RUN PROOF BUG PART ROOM PARTS CORNERS FAULTS BROKERS DEDUP FEED DURATION MAKEFLAGS GNUMAKEFLAGS \
	${!EFFECTONCE_TEST_@}
steps_names=() steps_seconds=() steps_codes=() steps_commands=()

step() {
	local name=$1 began=$SECONDS code=0
	shift
	echo "== $name: $*"
	"$@" < /dev/null 2>&1 | tee ".cache/steps/$name.log" || code=${PIPESTATUS[0]}
	steps_names+=("$name") steps_seconds+=($((SECONDS - began))) steps_codes+=("$code") steps_commands+=("$*")
}

steps_end() {
	local i said failed=0 all=0
	echo
	for i in "${!steps_names[@]}"; do
		said=$(grep -om1 'NOT CHECKED: .*' ".cache/steps/${steps_names[i]}.log" || true)
		((steps_codes[i])) && said=FAILED
		printf '%-16s %6d s%s\n' "${steps_names[i]}" "${steps_seconds[i]}" "${said:+  $said}"
		((all += steps_seconds[i], failed += steps_codes[i] != 0)) || true
	done
	printf '%-16s %6d s\n' all "$all"
	((failed)) || exit 0
	for i in "${!steps_names[@]}"; do
		((steps_codes[i])) || continue
		printf '\n%s failed at %s (exit code %d). To repeat: %s\nIts log: .cache/steps/%s.log\n' "${steps_names[i]}" \
			"$(git describe --always --dirty --exclude "*")" "${steps_codes[i]}" "${steps_commands[i]}" "${steps_names[i]}"
		# The last 200 lines; and the first 200 that a test run says of its failures, which others may follow.
		awk '/^=== (Failed|Errors)$/ && !first { n = 0; first = 200 } { line[n++] = $0 }
			END { for (i = 0; i < n; i++) if (i < first || i >= n - 200) print line[i]; else if (i == first) print "..." }' \
			".cache/steps/${steps_names[i]}.log"
	done
	exit 1
}
