package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rules are the ones that the page must show.
var rules = []string{
	"P1", "P2", "P3.1", "P3.2", "P3.3", "P3.4", "P3.5", "P3.6", "P3.7",
	"P4.unreachable", "P4.hold", "P4.all", "P4.topic", "P4.split", "P4.park", "P4.release", "P4.discard", "P4.pins",
	"P5.lease", "P5.epoch", "P5.fence", "P6.floor", "P7", "P8",
	"P9.1", "P9.2", "P9.3", "P9.4", "P9.5", "P9.6", "P9.7", "P9.8", "P9.9", "P10",
	"I1", "I2", "I3", "I4", "I5", "I7", "I8", "I9", "I10",
}

// TestThePageNamesTestsThatExist: every rule has its tests, each is one of this repository, and the last column was
// filled in by a run in which all of them passed.
func TestThePageNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{} // by folder
	var found []string
	for _, line := range strings.Split(string(page), "\n") {
		r, ok := parseRow(line)
		if !ok {
			continue
		}
		found = append(found, r.Rule)
		if len(r.tests()) == 0 {
			t.Errorf("%s names no test", r.Rule)
		}
		if r.Result != "passed" {
			t.Errorf("%s: its result is %q: run make guarantees", r.Rule, r.Result)
		}
		for _, name := range r.tests() {
			folder, test, ok := strings.Cut(name, ".Test")
			if !ok {
				t.Errorf("%s: %q is no package.Test", r.Rule, name)
				continue
			}
			if tests[folder] == nil {
				tests[folder] = testsIn(t, folder)
			}
			root, sub, _ := strings.Cut("Test"+test, "/")
			if !slices.Contains(tests[folder], root) {
				t.Errorf("%s: there is no %s in %s", r.Rule, root, folder)
			}
			if root == "TestStories" {
				if _, err := os.Stat(filepath.Join("../..", folder, "testdata", sub+".txt")); err != nil {
					t.Errorf("%s: no such story: %v", r.Rule, err)
				}
			}
		}
	}
	for _, rule := range rules {
		if !slices.Contains(found, rule) {
			t.Errorf("the page says nothing of %s", rule)
		}
	}
}

func testsIn(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{""} // not nil: looked up
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}
