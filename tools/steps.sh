# Sourced. `step NAME COMMAND...` runs a step; `steps_end` prints how long each took and exits: with 1 if one failed,
# and then the last lines are what it said and the command that repeats it. Logs are in .cache/steps.
mkdir -p .cache/steps
steps_names=() steps_seconds=() steps_codes=() steps_commands=()

step() {
	local name=$1 began=$SECONDS code=0
	shift
	echo "== $name: $*"
	rm -f .cache/test/failed
	"$@" < /dev/null 2>&1 | tee ".cache/steps/$name.log" || code=${PIPESTATUS[0]}
	# What a test run says of its failures is better than its last lines.
	if ((code)) && [ -e .cache/test/failed ]; then mv .cache/test/failed ".cache/steps/$name.log"; fi
	steps_names+=("$name") steps_seconds+=($((SECONDS - began))) steps_codes+=("$code") steps_commands+=("$*")
}

steps_end() {
	local i failed=0 all=0
	echo
	for i in "${!steps_names[@]}"; do
		printf '%-16s %6d s%s\n' "${steps_names[i]}" "${steps_seconds[i]}" "$( ((steps_codes[i])) && echo "  FAILED")"
		((all += steps_seconds[i], failed += steps_codes[i] != 0)) || true
	done
	printf '%-16s %6d s\n' all "$all"
	((failed)) || exit 0
	for i in "${!steps_names[@]}"; do
		((steps_codes[i])) || continue
		printf '\n%s failed at %s (exit code %d). To repeat: %s\n' "${steps_names[i]}" "$(git rev-parse --short HEAD)" \
			"${steps_codes[i]}" "${steps_commands[i]}"
		tail -n 200 ".cache/steps/${steps_names[i]}.log"
	done
	exit 1
}
