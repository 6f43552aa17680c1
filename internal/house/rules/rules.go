// Package rules reads the table of docs/rules.md: each rule of the protocol, and the tests that show it.
package rules

import (
	"fmt"
	"regexp"
	"strings"
)

// rule begins a row: the protocol's rules, the invariants, and the rules of the WAL source.
var rule = regexp.MustCompile(`^\| (P[0-9]|I[0-9]|WAL\.)`)

// inName is the rule that a test is named for: TestP3_2_AnOpenEntry, TestP4Release.
var inName = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)(P[0-9]+)(?:_([0-9]+))?(?:[^0-9]|$)`)

// Of is the rule that a test's function is named for, P3.2 or P4; empty: none.
func Of(test string) string {
	m := inName.FindStringSubmatch(test)
	switch {
	case m == nil:
		return ""
	case m[2] == "":
		return m[1]
	}
	return m[1] + "." + m[2]
}

// Row is a line of the table: a rule, a sentence on it, the tests that show it, and the result of their last run.
type Row struct{ Rule, Says, Shown, Result string }

// Parse reads a line of the page. It returns false for a line that is no row of the table.
func Parse(line string) (r Row, ok bool) {
	cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
	if len(cells) != 4 || !rule.MatchString(line) {
		return Row{}, false
	}
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return Row{cells[0], cells[1], cells[2], cells[3]}, true
}

// String is the line.
func (r Row) String() string {
	return fmt.Sprintf("| %s | %s | %s | %s |", r.Rule, r.Says, r.Shown, r.Result)
}

// Tests are the tests that the row names, each between backticks: package.TestName, or package.TestName/subtest.
func (r Row) Tests() (names []string) {
	for i, part := range strings.Split(r.Shown, "`") {
		if i%2 == 1 {
			names = append(names, part)
		}
	}
	return names
}
