// Command guarantees writes the test results of each rule: it reads the output of `go test -json` and fills the last
// column of the table in docs/rules.md. It adds tests that are named for a rule (TestP3_2_...) and are not in the table
// to the rule's row.
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

// run rewrites the file and prints how many rules passed. It fails if one did not.
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
	text, passed, failed := fill(string(page), results)
	if err := os.WriteFile(args[0], []byte(text), 0o600); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d rules passed\n", passed)
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

// fill writes the tests and the result of each row. It returns the page, the number of passed rules, and the others.
func fill(page string, results map[string]string) (text string, passed int, failed []string) {
	lines := strings.Split(page, "\n")
	more := unlisted(lines, results)
	for i, line := range lines {
		r, ok := rules.Parse(line)
		if !ok {
			continue
		}
		for _, name := range more[r.Rule] {
			r.Shown += ", `" + name + "`"
		}
		delete(more, r.Rule)
		r.Result = judge(r, results)
		if strings.HasPrefix(r.Result, "passed") {
			passed++
		} else {
			failed = append(failed, r.Rule+" ("+r.Result+")")
		}
		lines[i] = r.String()
	}
	for _, rule := range slices.Sorted(maps.Keys(more)) {
		failed = append(failed, fmt.Sprintf("%s (no row for %s)", rule, strings.Join(more[rule], ", ")))
	}
	return strings.Join(lines, "\n"), passed, failed
}

// unlisted returns the tests that are named for a rule and are in no row, by rule.
func unlisted(lines []string, results map[string]string) map[string][]string {
	listed, more := map[string]bool{}, map[string][]string{}
	for _, line := range lines {
		r, _ := rules.Parse(line)
		for _, name := range r.Tests() {
			name, _, _ = cutTest(name)
			listed[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(results)) {
		name, test, sub := cutTest(name)
		if rule := rules.Of(test); rule != "" && sub == "" && !listed[name] && results[name] != "skip" {
			more[rule] = append(more[rule], name)
		}
	}
	return more
}

// cutTest splits a/b.TestC/d into a/b.TestC, TestC and d.
func cutTest(full string) (name, test, sub string) {
	folder, test, _ := strings.Cut(full, ".")
	test, sub, _ = strings.Cut(test, "/")
	return folder + "." + test, test, sub
}

// judge returns the result of a row. A test that was skipped or did not run is not a pass.
func judge(r rules.Row, results map[string]string) string {
	tests := r.Tests()
	if len(tests) == 0 {
		return "no test"
	}
	for _, name := range tests {
		switch results[name] {
		case "pass":
		case "":
			return "not run: " + name
		default:
			return results[name] + ": " + name
		}
	}
	return "passed"
}
