package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/migrations"
)

// Set names a migration set.
type Set = migrations.Set

// migrate brings the sets into the DB's schema, as a user's migration does: a shortcut could differ from it.
func migrate(t testing.TB, db *DB, sets []Set) {
	t.Helper()
	if len(sets) == 0 {
		return // for migrations itself no set means all of them
	}
	conn, err := pgx.ParseConfig(db.AdminURL)
	if err != nil {
		t.Fatalf("pgtest: parse %s: %v", db.AdminURL, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := migrations.Up(ctx, conn, migrations.Options{Schema: db.Schema, Sets: sets}); err != nil {
		t.Fatalf("pgtest: migrate %v: %v", sets, err)
	}
}
