package pgtest

import (
	"maps"
	"slices"
	"testing"

	"github.com/effectonce/effectonce/internal/pgschema"
)

// PrepareAll prepares each query of a room (name to SQL text) against the test's schema and fails for those that the
// database refuses. `{schema}` becomes the quoted schema and a dot, as the rooms do it.
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
