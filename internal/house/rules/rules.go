// Package rules reads the table of docs/rules.md: each rule of the protocol, and the tests that show it.
package rules

import (
	"regexp"
	"strings"
)

// rule begins a row: the protocol's rules, the invariants, and the rules of the WAL feed.
var rule = regexp.MustCompile(`^\| (P[0-9]|I[0-9]|WAL )`)

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

// notProtocol are the names of tests for what docs/protocol.md has no section of: the WAL feed, which has one row,
// and the invariants.
var notProtocol = regexp.MustCompile(`^(?:Test|Fuzz)(?:(WAL)[A-Z0-9]|(I[0-9]+)[^0-9])`)

// ofSub is the rule that a subtest is named for, as stories are: P3.1.lock_first, P2.cursor.
var ofSub = regexp.MustCompile(`^(P[0-9]+(?:\.[0-9]+)?)[._]`)

// RowOf is the rule of the row for which a test counts by its name alone; empty: none.
func RowOf(test string) string {
	if _, sub, is := strings.Cut(test, "/"); is {
		if m := ofSub.FindStringSubmatch(sub); m != nil {
			return m[1]
		}
		return ""
	}
	m := notProtocol.FindStringSubmatch(test)
	switch {
	case m == nil:
		return Of(test)
	case m[1] != "":
		return m[1]
	}
	return m[2]
}

// Row is a line of the table: a rule, a sentence on it, and the tests that show it and are not named for it.
type Row struct{ Rule, Says, Shown string }

// Parse reads a line of the page. It returns false for a line that is no row of the table.
func Parse(line string) (r Row, ok bool) {
	cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "|"), "|"), " |")
	if len(cells) != 3 || !rule.MatchString(line) {
		return Row{}, false
	}
	return Row{strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])}, true
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
