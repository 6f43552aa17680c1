#!/usr/bin/env bash
# flaky.sh PACKAGE...: runs the tests of packages again and again beside each other, to find those that fail by chance.
# Each package is built once, as the gate builds it (RACED: packages with the race detector), and run RUNS times, SIDE
# processes at a time, in random order, on one Postgres and one Kafka; all of them are niced, beside a disk that another
# process writes to. RUN selects tests. At the end: how often each test failed, and the output of each failed run.
set -euo pipefail
export root=$PWD out=$PWD/.cache/flaky
rm -rf "$out" && mkdir -p "$out/log"
raced=" $([ -z "$RACED" ] || go list $RACED | tr '\n' ' ')"
go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' "$@" > "$out/packages"
while read -r package dir; do
	dir=${dir#"$root"/} name=${dir//\//-}
	go test -c -vet=off $([[ $raced == *" $package "* ]] && echo -race) -o "$out/$name" "$package"
	[ -n "$("$out/$name" -test.list "$RUN")" ] || continue
	for ((i = 1; i <= RUNS; i++)); do echo "$dir $name $i"; done
done < "$out/packages" > "$out/runs"
if ! [ -s "$out/runs" ]; then
	echo "no test of $* is named by RUN='$RUN'"
	exit 1
fi
while :; do dd if=/dev/zero of="$out/disk" bs=1M count=64 conv=fsync status=none; done &
trap 'kill $!' EXIT
once() { # DIR BINARY NUMBER
	local log=$out/log/$2-$3
	if cd "$root/$1" && nice -n 10 "$out/$2" -test.timeout 60m -test.run "$RUN" > "$log" 2>&1 < /dev/null &&
		! grep -q '^--- FAIL' "$log"; then # a TestMain decides on the exit code
		rm "$log"
	else
		echo "exit code $?" >> "$log"
		echo "$2-$3: $(grep -cE '^--- FAIL' "$log") failed"
	fi
}
export -f once
shuf "$out/runs" | xargs -r -P "$SIDE" -L 1 bash -c 'once "$@"' once
printf '%d runs of %d packages, %d at a time, %d failed\n' "$(wc -l < "$out/runs")" "$(cut -d' ' -f1 "$out/runs" | sort -u | wc -l)" \
	"$SIDE" "$(find "$out/log" -type f | wc -l)"
[ -n "$(ls "$out/log")" ] || exit 0
tail -n +1 "$out"/log/*
grep -hE '^ *--- FAIL|^panic: |DATA RACE|^a goroutine has leaked' "$out"/log/* | sed -E 's/ \([0-9.]+s\)$//' | sort | uniq -c | sort -rn
exit 1
