package doctor

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// reader is a pool that waits for no lock for long.
func reader(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	LimitWaits(cfg)
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func execAll(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// TestLocks: a table that a session has to itself ends the looks at it, and the session is named; so is one that waits
// for that, and what it waits for.
func TestLocks(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	pool := reader(t, db.URL)
	holder, ddl := db.Connect(t), db.Connect(t)
	execAll(t, holder, `set application_name = 'rewriter'`, `begin`, `lock table outbox_event in access exclusive mode`)
	list := Examine(t.Context(), Subject{DB: pool, Schema: db.Schema})
	expect(t, list, "outbox", Fail, "lock timeout")
	for _, part := range []string{
		`(application_name "rewriter", idle in transaction, in its transaction since `,
		`lock table outbox_event in access exclusive mode) holds an ACCESS EXCLUSIVE lock on outbox_event`,
	} {
		expect(t, list, "locks", Fail, part)
	}
	execAll(t, holder, `rollback`, `begin`, `select count(*) from outbox_lane`)
	ended := make(chan error, 1)
	go func() {
		_, err := ddl.Exec(context.WithoutCancel(t.Context()), `alter table outbox_lane add column x int`)
		ended <- err
	}()
	pgtest.AwaitBlocked(t, db, ddl.PgConn().PID())
	_, err := pool.Exec(t.Context(), `select count(*) from outbox_lane`)
	if who := Blocked(t.Context(), pool, db.Schema, err); !strings.Contains(who, "add column x int) wants an ACCESS "+
		"EXCLUSIVE lock on outbox_lane, and itself waits for "+fmt.Sprint(holder.PgConn().PID())) {
		t.Errorf("%v: %s", err, who)
	}
	execAll(t, holder, `rollback`)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if who := Blocked(t.Context(), pool, db.Schema, context.DeadlineExceeded); who != "" {
		t.Error(who)
	}
}

// TestWaits: a session that others wait for is named, though the tables can be read: one that has a table, and one that
// has changed a row. One that waits itself is not.
func TestWaits(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	holder, writer, next := db.Connect(t), db.Connect(t), db.Connect(t)
	ended := make(chan error, 2)
	for what, c := range map[string]struct{ hold, wait string }{
		"an index is made": {
			`create index on outbox_event (topic)`, `insert into outbox_event (topic, type) values ('t', 'T')`,
		},
		"a row is changed": {
			`select from outbox_lane where lane = 3 for update`, `update outbox_lane set lane = 3 where lane = 3`,
		},
	} {
		execAll(t, holder, `set application_name = 'rewriter'`, `begin`, c.hold)
		for _, conn := range []*pgx.Conn{writer, next} {
			go func() {
				_, err := conn.Exec(context.WithoutCancel(t.Context()), c.wait)
				ended <- err
			}()
			pgtest.AwaitBlocked(t, db, conn.PgConn().PID())
		}
		pgtest.AwaitSQL(t, db, `select coalesce(max(waitstart) < clock_timestamp() - interval '5.1 s', false)
			from pg_locks where pid = any ($1) and not granted`, []uint32{writer.PgConn().PID(), next.PgConn().PID()})
		got, text := worst(Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema}), "waits")
		if got != Warn || strings.Count(text, "for session") != 1 || !strings.Contains(text, fmt.Sprintf(
			`for session %d (application_name "rewriter", idle in transaction, `, holder.PgConn().PID())) {
			t.Errorf("%s: %q %s", what, got, text)
		}
		execAll(t, holder, `rollback`)
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	expect(t, Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema}), "waits", OK, "no session waits")
}

// TestLimitBehindAPooler: the limit stays with no server's session that others use next.
func TestLimitBehindAPooler(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	if got := pgtest.One[string](t, &pgtest.DB{Pool: reader(t, db.URL)}, `show lock_timeout`); got != "3s" {
		t.Errorf("lock_timeout is %s", got)
	}
	url := pgtest.NewBouncer(t, db.URL, "transaction") + "&default_query_exec_mode=exec"
	if got := pgtest.One[string](t, &pgtest.DB{Pool: reader(t, url)}, `show lock_timeout`); got != "0" {
		t.Errorf("behind a pooler lock_timeout is %s", got)
	}
}
