package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/migrations"
)

// Set names a migration set.
type Set = migrations.Set

// migrate migrates the DB's schema.
func migrate(t testing.TB, db *DB, sets []Set) {
	t.Helper()
	if len(sets) == 0 {
		return // migrations.Up would migrate all sets
	}
	conn, err := pgx.ParseConfig(db.AdminURL)
	if err != nil {
		t.Fatalf("pgtest: parse %s: %v", db.AdminURL, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*awaitLimit)
	defer cancel()
	if err := migrations.Up(ctx, conn, migrations.Options{Schema: db.Schema, Sets: sets}); err != nil {
		t.Fatalf("pgtest: migrate %v: %v", sets, err)
	}
}
