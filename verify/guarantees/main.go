// Command guarantees says of each rule in docs/rules.md whether its tests passed: it reads the output of
// `go test -json`. A rule's tests are those of its row, and those that are named for it (TestP3_2_...).
//
//	go test -json ./... | go run ./verify/guarantees docs/rules.md
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/effectonce/effectonce/internal/house/rules"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "guarantees:", err)
		os.Exit(1)
	}
}

// run prints how many rules passed, and which tests that are named for a rule were skipped. It fails if a rule did not
// pass.
func run(args []string, tests io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("want the path of the page with the table of rules")
	}
	results, err := readResults(tests)
	if err != nil {
		return err
	}
	page, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	passed, skipped, failed := judgeAll(string(page), results)
	fmt.Fprintf(out, "%d rules passed\n", passed)
	if len(skipped) > 0 {
		fmt.Fprintf(out, "skipped: %s\n", strings.Join(skipped, ", "))
	}
	if len(failed) > 0 {
		return fmt.Errorf("not passed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// readResults reads the result of each test ("pass", "fail", "skip") by package and name: "relay.TestZombie".
func readResults(r io.Reader) (map[string]string, error) {
	results := map[string]string{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct{ Action, Package, Test string }
		// Ignore output of other programs of the run.
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Test == "" {
			continue
		}
		switch e.Action {
		case "pass", "fail", "skip":
			results[shortName(e.Package)+"."+e.Test] = e.Action
		}
	}
	return results, lines.Err()
}

func shortName(pkg string) string {
	const module = "github.com/effectonce/effectonce/"
	return strings.TrimPrefix(pkg, module)
}

// judgeAll returns the number of rows that passed, the skipped tests that count by their names, and the rows that did
// not pass.
func judgeAll(page string, results map[string]string) (passed int, skipped, failed []string) {
	named := byName(results)
	rows := map[string]bool{}
	for _, line := range strings.Split(page, "\n") {
		r, ok := rules.Parse(line)
		if !ok {
			continue
		}
		rows[r.Rule] = true
		if why := judge(r.Tests(), named[r.Rule], results); why != "" {
			failed = append(failed, r.Rule+" ("+why+")")
		} else {
			passed++
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(named)) {
		if !rows[rule] {
			failed = append(failed, fmt.Sprintf("%s (no row for %s)", rule, strings.Join(named[rule], ", ")))
		}
		for _, name := range named[rule] {
			if results[name] == "skip" {
				skipped = append(skipped, name)
			}
		}
	}
	return passed, skipped, failed
}

// byName returns the tests that count for a row by their names, sorted, by the row's rule.
func byName(results map[string]string) map[string][]string {
	named := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(results)) {
		_, test, _ := strings.Cut(name, ".")
		if rule := rules.RowOf(test); rule != "" {
			named[rule] = append(named[rule], name)
		}
	}
	return named
}

// judge returns why a row did not pass; empty: it did. A test of the row that was skipped or did not run is not a pass;
// of those that count by their names one must have run.
func judge(listed, named []string, results map[string]string) string {
	ran := false
	for _, name := range named {
		switch results[name] {
		case "pass":
			ran = true
		case "skip":
		default:
			return results[name] + ": " + name
		}
	}
	for _, name := range listed {
		switch results[name] {
		case "pass":
			ran = true
		case "":
			return "not run: " + name
		default:
			return results[name] + ": " + name
		}
	}
	if !ran {
		return "no test"
	}
	return ""
}
