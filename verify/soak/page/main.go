// Command page writes the reports of soaks into docs/reliability.md, between its two marks:
//
//	EFFECTONCE_SOAK_REPORT=$PWD/report.jsonl make soak DURATION=30m
//	go run ./verify/soak/page docs/reliability.md < report.jsonl
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/effectonce/effectonce/verify/soak"
)

// The marks around the generated part of the page.
const (
	begin = "<!-- soaks -->"
	end   = "<!-- end of soaks -->"
)

func main() {
	if err := run(os.Args[1:], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

func run(args []string, lines io.Reader) error {
	if len(args) != 1 {
		return errors.New("name the page")
	}
	reports, err := read(lines)
	if err != nil {
		return err
	}
	page, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(page), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s has no %s and %s", args[0], begin, end)
	}
	return os.WriteFile(args[0], []byte(head+begin+"\n"+text(reports)+end+tail), 0o600)
}

func read(lines io.Reader) (reports []soak.Report, err error) {
	for dec := json.NewDecoder(lines); ; {
		var r soak.Report
		switch err := dec.Decode(&r); {
		case errors.Is(err, io.EOF) && len(reports) == 0:
			return nil, errors.New("the input has no report")
		case errors.Is(err, io.EOF):
			return reports, nil
		case err != nil:
			return nil, fmt.Errorf("report %d: %w", len(reports)+1, err)
		}
		reports = append(reports, r)
	}
}

// columns are groups of violations.
var columns = []struct {
	title      string
	invariants []string
}{
	{"lost (I1)", []string{"I1"}},
	{"phantom (I2)", []string{"I2"}},
	{"second effects (I3)", []string{"I3"}},
	{"inversions (I4)", []string{"I4"}},
	{"stale writes (I5)", []string{"I5"}},
	{"offsets beyond decided events (I7)", []string{"I7"}},
	{"stuck (I8)", []string{"I8"}},
	{"removed (I9)", []string{"I9"}},
	{"leaked (I10)", []string{"I10"}},
}

// text returns the generated part: a table of runs, a table of verdicts, and how many kinds of faults were made.
func text(reports []soak.Report) string {
	var b strings.Builder
	b.WriteString("\n| seed | faults for | brokers | faults | processes started | killed at statements | events | " +
		"records | repeated | effects | audited | unknown COMMITs, of these committed |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	faults, kills, notMade := map[string]int{}, map[string]int{}, 0
	for _, r := range reports {
		c := r.Verdict.Counts
		fmt.Fprintf(&b, "| %d | %s | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d, %d |\n", r.Seed, r.Duration,
			r.Brokers, sum(r.Faults), r.Starts, sum(r.Kills),
			c.Events, c.Records, c.Duplicates, c.Effects, c.Audits, c.Unknown, c.UnknownThere)
		add(faults, r.Faults)
		add(kills, r.Kills)
		notMade += len(r.NotMade)
	}
	b.WriteString("\n| seed |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.title)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, r := range reports {
		fmt.Fprintf(&b, "| %d |", r.Seed)
		for _, c := range columns {
			fmt.Fprintf(&b, " %d |", violations(r, c.invariants))
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\nIn all of these runs: %d kinds of faults, at least %d of each; %d scheduled faults were "+
		"skipped,\nbecause another fault was active or the time was over; random kills at %d different statements.\n\n",
		len(faults), fewest(faults), notMade, len(kills))
	return b.String()
}

func violations(r soak.Report, invariants []string) (n int) {
	for _, v := range r.Verdict.Violations {
		if slices.Contains(invariants, v.Invariant) {
			n += v.Count
		}
	}
	if slices.Contains(invariants, "I8") {
		n += len(r.Failures)
	}
	return n
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

func add(to, from map[string]int) {
	for k, v := range from {
		to[k] += v
	}
}

func fewest(m map[string]int) int {
	if len(m) == 0 {
		return 0
	}
	return slices.Min(slices.Collect(maps.Values(m)))
}
