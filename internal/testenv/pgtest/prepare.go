package pgtest

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgschema"
)

// PrepareAll prepares queries (text by name) in the test's schema and fails for those that the database rejects.
// `{schema}` is replaced by the quoted schema and a dot.
func PrepareAll(t testing.TB, db *DB, queries map[string]string) {
	t.Helper()
	prefix, err := pgschema.Prefix(db.Schema)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	conn := db.Connect(t)
	for _, name := range slices.Sorted(maps.Keys(queries)) {
		if _, err := conn.Prepare(t.Context(), "", pgschema.Expand(queries[name], prefix)); err != nil {
			t.Errorf("query %s: %v", name, err)
		}
	}
}

// Queries parses the string constants of source files, by name, so that a test prepares all of a package's statements.
func Queries(t testing.TB, patterns ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("pgtest: no queries in %s: %v", pattern, err)
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.ValueSpec)
				if !ok || len(spec.Values) != 1 {
					return true
				}
				if literal, ok := spec.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if all[spec.Names[0].Name], err = strconv.Unquote(literal.Value); err != nil {
						t.Fatal(err)
					}
				}
				return true
			})
		}
	}
	return all
}

// PlannedOnce fails for each statement of ours that a session has used often and plans anew each time, and if the
// session has used none. Planning is most of what such a statement costs.
func PlannedOnce(t testing.TB, on interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
},
) {
	t.Helper()
	rows, err := on.Query(t.Context(), `select split_part(statement, chr(10), 1), custom_plans > 5, custom_plans,
		generic_plans from pg_prepared_statements where statement like '-- %: %' and generic_plans + custom_plans >= 10`)
	if err != nil {
		t.Fatal(err)
	}
	var name string
	var anew bool
	var custom, generic int
	used := 0
	_, err = pgx.ForEachRow(rows, []any{&name, &anew, &custom, &generic}, func() error {
		if used++; anew {
			t.Errorf("%s: planned %d times, and %d times not", name, custom, generic)
		}
		return nil
	})
	if err != nil || used == 0 {
		t.Errorf("the session has used no statement often: %v", err)
	}
}
