package failpoint_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/failpoint"
)

// TestTable: every name that is declared stands in the table once, with its moment.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[failpoint.Name]bool{}
	for _, p := range failpoint.All() {
		if seen[p.Name] || p.When == "" || strings.Count(string(p.Name), "/") != 1 {
			t.Errorf("%s: it stands there twice, or says nothing", p.Name)
		}
		seen[p.Name] = true
	}
	for ident, name := range declared(t) {
		if !seen[name] {
			t.Errorf("%s is not in the table: add it, or nobody is killed there", ident)
		}
	}
}

// declared are the names by their identifiers.
func declared(t *testing.T) map[string]failpoint.Name {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "names.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]failpoint.Name{}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			names[v.Names[0].Name] = failpoint.Name(text)
		}
		return true
	})
	return names
}
