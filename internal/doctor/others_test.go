package doctor

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestOthers: what speaks Postgres' protocol and is none is told by its version() and refused before anything else is
// asked; of Citus, tables that are distributed.
func TestOthers(t *testing.T) {
	t.Parallel()
	examine := func(t *testing.T, statements ...string) []Finding {
		t.Helper()
		db := pgtest.New(t, migrations.Outbox)
		for _, sql := range statements {
			db.Exec(t, sql)
		}
		cfg, err := pgxpool.ParseConfig(db.URL)
		if err != nil {
			t.Fatal(err)
		}
		cfg.ConnConfig.RuntimeParams["search_path"] = db.Schema + ", pg_catalog" // its functions win
		delete(cfg.ConnConfig.RuntimeParams, "options")
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return Examine(t.Context(), Subject{DB: pool, Schema: db.Schema})
	}
	for version, why := range map[string]string{
		"CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu)":     "advisory locks",
		"PostgreSQL 11.2-YB-2.20.1.0-b0 on x86_64-pc-linux": "sequences",
	} {
		list := examine(t, `create function version() returns text language sql as $$ select '`+version+`' $$`)
		if len(list) != 1 || list[0].Severity != Fail || list[0].Found != version ||
			!strings.Contains(list[0].Means, why) {
			t.Errorf("%s: %+v", version, list)
		}
	}
	list := examine(t, `create table pg_dist_partition (logicalrelid regclass)`, `create table mine (n int)`,
		`insert into pg_dist_partition values ('mine'), ('outbox_lane'), ('outbox_event')`)
	if severity, text := worst(list, "citus"); severity != Fail ||
		!strings.Contains(text, "distributed: outbox_event, outbox_lane") {
		t.Errorf("%s %s", severity, text)
	}
	if severity, _ := worst(list, "primary"); severity != OK {
		t.Errorf("the rest is not looked at: %+v", list)
	}
}

// TestAlteredTables: an unlogged table and, from Postgres 18 on, a publication that leaves out a generated column of a
// key, are found; the remedies end that.
func TestAlteredTables(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, migrations.Outbox)
	look := func() (Severity, string) {
		t.Helper()
		return worst(Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema}), "altered tables")
	}
	want := func(severity Severity, words string) {
		t.Helper()
		if s, text := look(); s != severity || !strings.Contains(text, words) {
			t.Errorf("%s %s, want %s and %q", s, text, severity, words)
		}
	}
	want(OK, "none is")
	db.Exec(t, "alter table outbox_event set unlogged")
	want(Fail, "unlogged: outbox_event")
	db.Exec(t, "alter table outbox_event set logged")
	db.Exec(t, "alter table outbox_lane drop constraint outbox_lane_pkey")
	want(Fail, "without its primary key, or a unique index: outbox_lane")
	db.Exec(t, "alter table outbox_lane add primary key (lane)")
	db.Exec(t, "create table inbox_mine (n int)") // is no table of ours
	db.Exec(t, "create schema mine")
	db.Exec(t, "create unlogged table mine.outbox_lane (lane int)") // is another's, as this one
	db.Exec(t, "create table mine.outbox_event (a int, id int generated always as (a) stored primary key)")
	db.Exec(t, "create publication theirs for table mine.outbox_event")
	want(OK, "none is")

	db.Exec(t, "create publication everything for all tables")
	db.Exec(t, "insert into outbox_event (topic, key, type, payload) values ('payments', 'k', 'T', '0')")
	version, err := strconv.Atoi(pgtest.One[string](t, db, "show server_version_num"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Pool.Exec(t.Context(), "delete from outbox_event")
	if refused := err != nil; refused != (version >= 180000) {
		t.Fatalf("Postgres %d: %v", version, err)
	}
	if err == nil {
		want(OK, "none is")
		return
	}
	want(Fail, "everything publishes outbox_event")
	db.Exec(t, "alter publication everything set (publish_generated_columns = stored)")
	want(OK, "none is")
	db.Exec(t, "delete from outbox_event")
}

// TestInboxDaysWithoutItsRow: a restore of data without inbox_days is named, and grants are not blamed for it.
func TestInboxDaysWithoutItsRow(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, migrations.Inbox)
	db.Exec(t, "delete from inbox_days")
	list := Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema})
	expect(t, list, "inbox", Fail, "inbox_days has lost its row: restore it")
	for _, f := range list {
		if f.Check == "inbox" && (f.Command != "" || strings.Contains(f.Next, "grants")) {
			t.Errorf("%s %s", f.Next, f.Command)
		}
	}
}

// TestOtherOutboxes: events in an outbox of another schema that no relay serves are named with their number; what may
// not be read is not called well.
func TestOtherOutboxes(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, migrations.Outbox)
	look := func(pool *pgxpool.Pool) []Finding {
		t.Helper()
		return Examine(t.Context(), Subject{DB: pool, Schema: db.Schema})
	}
	expect(t, look(db.Pool), "other outboxes", OK, "0 in other schemas")
	beside := db.Beside(t, migrations.Outbox)
	expect(t, look(db.Pool), "other outboxes", OK, "1 in other schemas")
	beside.Exec(t, `insert into outbox_event (topic, type) select 't', 'T' from generate_series(1, 3)`)
	list := look(db.Pool)
	expect(t, list, "other outboxes", Warn, "schema "+beside.Schema+": 3 events, and no relay works there")
	for _, f := range list {
		if f.Check == "other outboxes" && f.Command != "relay status --schema="+beside.Schema {
			t.Error(f.Command)
		}
	}

	cfg := db.Pool.Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `set role pg_monitor`)
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	expect(t, look(pool), "other outboxes", Skip, beside.Schema)

	beside.Exec(t, `insert into relay_member (owner, seen, lease_until) values (gen_random_uuid(), now(),
		now() + interval '1 hour')`)
	expect(t, look(db.Pool), "other outboxes", OK, "1 in other schemas")
}
