package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
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

// templateSchema is the schema of the databases that New copies.
const templateSchema = "effectonce_template"

// own makes a copy of a template a test's own: it changes the name of its schema, which is also in the bodies of
// functions, and the identity of its outbox.
const own = `alter schema ` + templateSchema + ` rename to {schema};
do $$
declare
	f oid;
begin
	for f in select oid from pg_proc where pronamespace = '{schema}'::regnamespace and prosrc like '%` + templateSchema + `%' loop
		execute replace(pg_get_functiondef(f), '` + templateSchema + `', '{schema}');
	end loop;
	if to_regclass('{schema}.outbox_meta') is not null then
		update {schema}.outbox_meta set outbox_id = default;
	end if;
end $$`

// copyTemplate creates a database whose schema templateSchema has the sets. It copies another one, which takes a tenth
// of the time of migrating. The first test that needs that one makes it, and it stays.
func copyTemplate(t testing.TB, admin, name string, sets []Set) {
	t.Helper()
	sum := sha256.New()
	if err := migrations.Print(sum, migrations.Options{Sets: sets}); err != nil {
		t.Fatalf("pgtest: print %v: %v", sets, err)
	}
	template := templateSchema + "_" + hex.EncodeToString(sum.Sum(nil)[:8])
	create := "create database " + name + " template " + template
	if err := tryExec(admin, create); err == nil {
		return
	} else if !pgerr.Is(err, "3D000") { // there is no such database
		t.Fatalf("pgtest: %s: %v", create, err)
	}
	makeTemplate(t, admin, template, sets)
	adminExec(t, admin, create)
}

func makeTemplate(t testing.TB, admin, template string, sets []Set) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*awaitLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		t.Fatalf("pgtest: connect as superuser: %v", err)
	}
	// Its end releases the lock, for which other test binaries wait.
	defer func() { _ = conn.Close(ctx) }()
	var there bool
	if _, err = conn.Exec(ctx, "select pg_advisory_lock(hashtext($1))", template); err == nil {
		err = conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", template).Scan(&there)
	}
	if err != nil {
		t.Fatalf("pgtest: look for %s: %v", template, err)
	}
	if there {
		return
	}
	unfinished := template + "_new"
	adminExec(t, admin, "drop database if exists "+unfinished+" with (force)")
	adminExec(t, admin, "create database "+unfinished)
	made := &DB{Schema: templateSchema, AdminURL: withDatabase(t, admin, unfinished)}
	adminExec(t, made.AdminURL, "create schema "+templateSchema)
	migrate(t, made, sets)
	// A session, such as a monitor's on a server of one's own, would forbid copies.
	adminExec(t, admin, "alter database "+unfinished+" allow_connections false")
	adminExec(t, admin, "alter database "+unfinished+" rename to "+template)
}
