package migrations_test

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// Up recognises foreign tables by names read from the files; this holds the reading to what Postgres made of them.
func TestFilesCreateWhatWeThink(t *testing.T) {
	t.Parallel()
	creates, err := migrations.Load(migrations.Files)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(creates)
	db := pgtest.New(t)
	up(t, db.URL, migrations.Options{})
	// Left out: sequences that belong to a column, unless a file names them.
	made := lines(t, db,
		`select c.relname::text from pg_class c where c.relnamespace = to_regnamespace($1) and c.relkind in ('r', 'p',
				'v', 'm', 'S')
		and c.relname <> 'effectonce_migration'
		and not (c.relkind = 'S' and exists (select from pg_depend d where d.objid = c.oid
			and d.classid = 'pg_class'::regclass and d.deptype in ('a', 'i')) and c.relname <> all ($2))
			order by 1`, db.Schema, creates)
	slices.Sort(made)
	if !slices.Equal(creates, made) {
		t.Errorf("the files seem to create %q, Postgres made %q", creates, made)
	}
}

func TestFS(t *testing.T) {
	t.Parallel()
	for set, want := range map[migrations.Set]string{
		migrations.Outbox: "10001_outbox.sql",
		migrations.Inbox:  "20001_inbox.sql", migrations.Idempotency: "30001_idempotency.sql",
	} {
		if _, err := fs.Stat(migrations.FS(set), want); err != nil {
			t.Errorf("set %s: %v", set, err)
		}
	}
	for _, set := range []migrations.Set{"nope", "", "../x"} {
		if found, err := fs.Glob(migrations.FS(set), "*.sql"); err != nil || len(found) > 0 {
			t.Errorf("set %q has %q, %v", set, found, err)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	for want, root := range map[string]fstest.MapFS{
		"want a name like":     {"a/1_a.sql": sql("select 1;")},
		`annotation "Down"`:    {"a/10001_a.sql": sql("select 1;\n-- +goose Down\nselect 2;")},
		"ends in 0001":         {"a/10002_a.sql": sql("select 1;")},
		"want version 10002":   {"a/10001_a.sql": sql("select 1;"), "a/10003_a.sql": sql("select 1;")},
		"first version of a s": {"a/10001_a.sql": sql("select 1;"), "b/10002_a.sql": sql("select 1;")},
	} {
		if _, err := migrations.Load(root); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

func TestLoadFindsNames(t *testing.T) {
	t.Parallel()
	got, err := migrations.Load(fstest.MapFS{"a/10001_a.sql": sql(`-- create table in_a_comment
create table plain (i int); -- create table after_it
CREATE UNLOGGED TABLE IF NOT EXISTS Loud (i int);
create sequence
	wrapped;
create view seen as select 1;
create index not_listed on plain (i);
create temp table passing (i int);`)})
	if want := []string{"plain", "loud", "wrapped", "seen"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}
