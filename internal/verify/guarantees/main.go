// Command guarantees fills in what the tests said of each rule: it reads the output of `go test -json` and writes the
// last column of the table of rules in docs/rules.md, so that nobody writes a result by hand. A test that is named for
// a rule (TestP3_2_...) and stands in no row is added to the rule's.
//
//	go test -json ./... | go run ./internal/verify/guarantees docs/rules.md
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

// run rewrites the file that is named and says how many rules passed. It fails when one did not.
func run(args []string, tests io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("name the page with the table of rules")
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

// readResults reads the verdict on each test ("pass", "fail", "skip") by package and name: "relay.TestZombie".
func readResults(r io.Reader) (map[string]string, error) {
	results := map[string]string{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct{ Action, Package, Test string }
		// Other programs of the same run may write lines of their own.
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

// fill writes the tests and the result of each row and returns the page, how many rules passed, and which did not.
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

// unlisted are the tests of the run that are named for a rule and stand in no row, by rule.
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

// cutTest cuts a/b.TestC/d into a/b.TestC, TestC and d.
func cutTest(full string) (name, test, sub string) {
	folder, test, _ := strings.Cut(full, ".")
	test, sub, _ = strings.Cut(test, "/")
	return folder + "." + test, test, sub
}

// judge says what came of a row's tests. A test that was skipped or did not run shows nothing.
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
