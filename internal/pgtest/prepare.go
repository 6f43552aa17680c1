package pgtest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// PrepareAll prepares each query of a room (name to SQL text) against the test's schema and fails for those that the
// database refuses. `{schema}` becomes the quoted schema and a dot, as the rooms do it.
func PrepareAll(t testing.TB, db *DB, queries map[string]string) {
	t.Helper()
	conn := db.Connect(t)
	for _, name := range slices.Sorted(maps.Keys(queries)) {
		sql := strings.ReplaceAll(queries[name], "{schema}", pgx.Identifier{db.Schema}.Sanitize()+".")
		if _, err := conn.Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("query %s: %v", name, err)
		}
	}
}
