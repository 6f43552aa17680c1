package migrations_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

func TestUpTwice(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	up(t, db.URL, migrations.Options{})
	before := lines(t, db, "select (version_id, tstamp)::text from effectonce_migration order by id")
	if len(before) < 2 {
		t.Fatalf("version rows: %q", before)
	}
	up(t, db.URL, migrations.Options{})
	if after := lines(t, db, "select (version_id, tstamp)::text from effectonce_migration order by id"); !slices.Equal(
		before, after) {
		t.Errorf("the second Up changed the version rows from %q to %q", before, after)
	}
	if err := migrations.Check(t.Context(), db.Pool, migrations.Options{}); err != nil {
		t.Error(err)
	}
}

func TestUpConcurrently(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	// Two name the schema and two come with it in their search_path: they must still meet at one lock.
	results := make(chan error, 4)
	for i := range 4 {
		opt := migrations.Options{}
		if i%2 == 0 {
			opt.Schema = db.Schema
		}
		go func() { results <- migrations.Up(t.Context(), config(t, db.URL), opt) }()
	}
	for range 4 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if twice := lines(t, db, "select version_id::text from effectonce_migration group by 1 having count(*) > 1"); len(
		twice) > 0 {
		t.Errorf("applied more than once: %q", twice)
	}
}

func TestUpConcurrentlyIntoANewSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	results := make(chan error, 4)
	for range 4 {
		go func() {
			results <- migrations.Up(t.Context(), config(t, db.URL), migrations.Options{Schema: "app"})
		}()
	}
	for range 4 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

func TestSchemaWinsOverSearchPath(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	// A keyword is a name like any other.
	up(t, db.URL, migrations.Options{Schema: "user"})
	if got := relations(t, db, "public"); len(got) > 0 {
		t.Errorf("public has %q", got)
	}
	if got := relations(t, db, `"user"`); !slices.Contains(got, "outbox_event") ||
		!slices.Contains(got, migrations.Table) {
		t.Errorf("the schema has %q", got)
	}
	if err := migrations.Check(t.Context(), db.Pool, migrations.Options{Schema: "user"}); err != nil {
		t.Error(err)
	}
}

// Without Schema, a role that has a schema of its own name would make a second outbox beside the one it sees.
func TestSearchPathThatBeginsElsewhere(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	up(t, db.URL, migrations.Options{})
	db.Exec(t, "create schema app")
	url := pgtest.WithSearchPath(t, db.AdminURL, "app,public")
	err := migrations.Up(t.Context(), config(t, url), migrations.Options{})
	if err == nil || !strings.Contains(err.Error(), `effectonce_migration is in "public"`) {
		t.Errorf("got %v", err)
	}
	if got := relations(t, db, "app"); len(got) > 0 {
		t.Errorf("app has %q", got)
	}
}

func TestSetAddedLater(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]migrations.Set{"higher versions": "a", "lower versions": "b"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			upFrom(t, two(), db.URL, migrations.Options{Sets: []migrations.Set{first}})
			err := migrations.CheckFrom(t.Context(), two(), db.Pool, migrations.Options{})
			if !errors.Is(err, migrations.ErrPending) {
				t.Errorf("Check of both sets: %v", err)
			}
			upFrom(t, two(), db.URL, migrations.Options{})
			if err := migrations.CheckFrom(t.Context(), two(), db.Pool, migrations.Options{}); err != nil {
				t.Error(err)
			}
			// The second version is there too, and not only the table of the first.
			db.Exec(t, "select j from a_one, b_one")
		})
	}
}

func TestFailedMigrationLeavesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	broken := two()
	broken["a/10002_a.sql"] = sql("alter table a_one add column j int;\nselect 1/0;")
	err := migrations.UpFrom(t.Context(), broken, config(t, db.URL), migrations.Options{})
	if err == nil || !strings.Contains(err.Error(), "division by zero") {
		t.Fatalf("got %v", err)
	}
	if got := lines(t, db,
		"select attname::text from pg_attribute where attrelid = 'a_one'::regclass and attnum > 0"); !slices.Equal(got,
		[]string{"i"}) {
		t.Errorf("a_one has columns %q", got)
	}
	upFrom(t, two(), db.URL, migrations.Options{})
}

func TestLockTimeout(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	upFrom(t, one(), db.URL, migrations.Options{})
	reader := db.Connect(t)
	tx, err := reader.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select from a_one"); err != nil {
		t.Fatal(err)
	}
	// Far above the time-out: without one, the test fails instead of hanging.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err = migrations.UpFrom(ctx, two(), config(t, db.URL), migrations.Options{LockTimeout: time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "stayed locked for 1ms, 24 times") {
		t.Errorf("got %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	upFrom(t, two(), db.URL, migrations.Options{LockTimeout: -1})
}

// TestLockIsTriedAgain: who waits behind a migration goes on between two tries of it.
func TestLockIsTriedAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	upFrom(t, one(), db.URL, migrations.Options{})
	tx, err := db.Connect(t).Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "select from a_one")
	}
	if err != nil {
		t.Fatal(err)
	}
	said := make(logged) // no line before the last was read: the tries do not run out before the rollback
	up := make(chan error, 1)
	go func() {
		up <- migrations.UpFrom(t.Context(), two(), config(t, db.URL), migrations.Options{
			LockTimeout: 100 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(said, nil)),
		})
	}()
	for waits := true; waits; {
		select {
		case line := <-said:
			waits = !strings.Contains(line, "trying again")
		case err := <-up:
			t.Fatal(err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case <-said:
			continue
		case err := <-up:
			if err != nil {
				t.Error(err)
			}
		}
		return
	}
}

// TestDeadlockVictimIsRetried: producers and workers lock tables in another order than a migration.
func TestDeadlockVictimIsRetried(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "create sequence tries")
	files := one()
	files["a/10002_victim.sql"] = sql("-- +goose StatementBegin\ndo $$ begin if nextval('tries') = 1 then" +
		" raise exception 'deadlock detected' using errcode = '40P01'; end if; end $$\n-- +goose StatementEnd")
	err := migrations.UpFrom(t.Context(), files, config(t, db.URL), migrations.Options{LockTimeout: time.Millisecond})
	if n := pgtest.One[int](t, db, "select last_value from tries"); err != nil || n != 2 {
		t.Errorf("%d tries: %v", n, err)
	}
}

// logged is a log.
type logged chan string

// Write implements io.Writer.
func (l logged) Write(p []byte) (int, error) { l <- string(p); return len(p), nil }

// TestQueuesKeepTheirEnd: to cut the empty end off a table, vacuum locks everybody out of it.
func TestQueuesKeepTheirEnd(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	up(t, db.URL, migrations.Options{})
	if cut := lines(t, db, `select c.relname::text from pg_class c
		where c.relnamespace = to_regnamespace($1) and 'autovacuum_vacuum_scale_factor=0' = any (c.reloptions)
			and not ('vacuum_truncate=off' = any (c.reloptions) and (c.reltoastrelid = 0 or exists (
				select from pg_class b where b.oid = c.reltoastrelid
					and 'vacuum_truncate=off' = any (b.reloptions))))`, db.Schema); len(cut) > 0 {
		t.Errorf("vacuum cuts %q", cut)
	}
	db.Exec(t, `insert into outbox_event (topic, key, type) select 't', 'k', 'T' from generate_series(1, 1000)`)
	db.Exec(t, `delete from outbox_event`)
	db.Exec(t, `vacuum outbox_event`)
	if n := pgtest.One[int64](t, db, `select pg_relation_size('outbox_event')`); n == 0 {
		t.Error("vacuum cuts outbox_event")
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := migrations.Up(ctx, config(t, db.URL), migrations.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before it began: %v", err)
	}
	// Someone else migrates and does not end: only the caller's context does.
	holder := db.Connect(t)
	var held bool
	if err := holder.QueryRow(t.Context(), migrations.QueryLock, db.Schema).Scan(&held); err != nil || !held {
		t.Fatalf("lock: %v, %v", held, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := migrations.Up(ctx, config(t, db.URL), migrations.Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled while it waited: %v", err)
	}
	if got := relations(t, db, db.Schema); len(got) > 0 {
		t.Errorf("the schema has %q", got)
	}
	if err := holder.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	up(t, db.URL, migrations.Options{})
}

func TestWrongOptions(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, opt := range map[string]migrations.Options{
		"bad schema":  {Schema: "App"},
		"injection":   {Schema: `a"; drop table x; --`},
		"unknown set": {Sets: []migrations.Set{"nope"}},
	} {
		var out strings.Builder
		_, applied := migrations.Applied(t.Context(), db.Pool, opt)
		for i, err := range []error{
			migrations.Up(t.Context(), config(t, db.URL), opt),
			migrations.Check(t.Context(), db.Pool, opt),
			migrations.Print(&out, opt),
			applied,
		} {
			if err == nil || !strings.Contains(err.Error(), "want") {
				t.Errorf("%s, call %d: %v", name, i, err)
			}
		}
		if out.Len() > 0 {
			t.Errorf("%s: printed %q", name, out.String())
		}
	}
	if err := migrations.Up(t.Context(), nil, migrations.Options{}); err == nil {
		t.Error("Up without a config succeeded")
	}
}

func TestRights(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	nobody, url := role(t, db)
	// Nobody but superusers creates in public from Postgres 15 on; before, everybody.
	db.Exec(t, "revoke create on schema public from public")
	opt := migrations.Options{}
	err := migrations.Up(t.Context(), config(t, url), opt)
	if err == nil || !strings.Contains(err.Error(),
		`role "`+nobody+`" may not create tables in schema "public"`) {
		t.Errorf("without a right: %v", err)
	}
	up(t, db.URL, opt)
	err = migrations.Up(t.Context(), config(t, url), opt)
	if err == nil || !strings.Contains(err.Error(), "grant select") {
		t.Errorf("without select: %v", err)
	}
	db.Exec(t, "grant select on effectonce_migration to "+nobody)
	up(t, url, opt)
}

// An owner that is no superuser is the ordinary case.
func TestPlainOwner(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	owner, url := role(t, db)
	db.Exec(t, "grant create on database "+config(t, db.URL).Database+" to "+owner)
	up(t, url, migrations.Options{Schema: "app"})
}
