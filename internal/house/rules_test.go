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

	"github.com/effectonce/effectonce/internal/house/rules"
)

// TestTheTableNamesTestsThatExist: each row of docs/rules.md has tests, in it or by their names, and those in it exist
// and are not there by their names already.
func TestTheTableNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{} // by folder
	named := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.isTest && f.Recv == nil {
				named[rules.RowOf(f.Name.Name)] = true
			}
		}
	}
	for _, r := range readRules(t) {
		if len(r.Tests()) == 0 && !named[r.Rule] {
			t.Errorf("%s has no test", r.Rule)
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
			if rules.RowOf(test) == r.Rule {
				t.Errorf("%s: %s counts by its name, and need not stand here", r.Rule, name)
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
