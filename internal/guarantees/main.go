// Command guarantees fills in what the tests said of each rule: it reads the output of `go test -json` and writes the last
// column of the table of rules in docs/guarantees.md, so that nobody writes a result by hand.
//
//	go test -json ./... | go run ./internal/guarantees docs/guarantees.md
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
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

// row is a line of the table: a rule, what it says, the tests that show it, and what came of them.
type row struct{ Rule, Says, Shown, Result string }

// parseRow reads a line of the page; ok is false for what is no row of the table of rules.
func parseRow(line string) (r row, ok bool) {
	cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
	if len(cells) != 4 || !strings.HasPrefix(line, "| P") && !strings.HasPrefix(line, "| I") {
		return row{}, false
	}
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return row{cells[0], cells[1], cells[2], cells[3]}, true
}

// tests are the tests that a row names, each between backticks.
func (r row) tests() (names []string) {
	for i, part := range strings.Split(r.Shown, "`") {
		if i%2 == 1 {
			names = append(names, part)
		}
	}
	return names
}

// fill writes the result of each row and returns the page, how many rules passed, and which did not.
func fill(page string, results map[string]string) (text string, passed int, failed []string) {
	lines := strings.Split(page, "\n")
	for i, line := range lines {
		r, ok := parseRow(line)
		if !ok {
			continue
		}
		r.Result = r.judge(results)
		if strings.HasPrefix(r.Result, "passed") {
			passed++
		} else {
			failed = append(failed, r.Rule+" ("+r.Result+")")
		}
		lines[i] = fmt.Sprintf("| %s | %s | %s | %s |", r.Rule, r.Says, r.Shown, r.Result)
	}
	return strings.Join(lines, "\n"), passed, failed
}

// judge says what came of a row's tests. A test that was skipped or did not run shows nothing.
func (r row) judge(results map[string]string) string {
	tests := r.tests()
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
