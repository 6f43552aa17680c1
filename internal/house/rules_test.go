package house

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

// TestTheTableNamesTestsThatExist: each row of docs/rules.md has tests, each is one of this repository, and the last
// column was filled in by a run in which all of them passed.
func TestTheTableNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{} // by folder
	for _, r := range readRules(t) {
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
			test, sub, _ := strings.Cut(test, "/")
			if !slices.Contains(tests[folder], test) {
				t.Errorf("%s: there is no %s in %s", r.Rule, test, folder)
			}
			if test == "TestStories" {
				if _, err := os.Stat(filepath.Join(root, folder, "testdata", sub+".txt")); err != nil {
					t.Errorf("%s: no such story: %v", r.Rule, err)
				}
			}
		}
	}
}

// testsIn are the functions of a folder's tests, of other modules too.
func testsIn(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
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
