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

	"github.com/effectonce/effectonce/internal/guarantees/rules"
)

// TestThePageNamesTestsThatExist: every rule has its tests, each is one of this repository, and the last column was
// filled in by a run in which all of them passed.
func TestThePageNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{} // by folder
	found := 0
	for _, line := range strings.Split(string(page), "\n") {
		r, ok := rules.Parse(line)
		if !ok {
			continue
		}
		found++
		if len(r.Tests()) == 0 {
			t.Errorf("%s names no test", r.Rule)
		}
		if r.Result != "passed" {
			t.Errorf("%s: its result is %q: run make guarantees", r.Rule, r.Result)
		}
		for _, name := range r.Tests() {
			folder, test, ok := strings.Cut(name, ".")
			if !ok || !strings.HasPrefix(test, "Test") && !strings.HasPrefix(test, "Fuzz") {
				t.Errorf("%s: %q is no package.Test", r.Rule, name)
				continue
			}
			if tests[folder] == nil {
				tests[folder] = testsIn(t, folder)
			}
			root, sub, _ := strings.Cut(test, "/")
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
	if found < 40 {
		t.Errorf("the page has %d rows: is this still the table?", found)
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
