package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// stored reads the outbox back in id order, in the terms of an event.
func stored(t testing.TB, db *pgtest.DB) []event.Event {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `select message_id::text, source, tenant, topic, key, type, content_type,
		coalesce(headers, '{}'), payload, coalesce(event_time, '0001-01-01 00:00:00Z'), lane, id from outbox_event
		order by id`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (event.Event, error) {
		var e event.Event
		var id string
		err := row.Scan(&id, &e.Source, &e.Tenant, &e.Topic, &e.Key, &e.Type, &e.ContentType, &e.Headers, &e.Payload,
			&e.Time,
			&e.Position.Lane, &e.Position.Seq)
		e.ID, e.Time, e.Position = uuid.MustParse(id), e.Time.UTC(), event.Position{}
		if len(e.Headers) == 0 {
			e.Headers = nil
		}
		return e, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// awkward makes n events with what text formats stumble over.
func awkward(n int) []event.Event {
	texts := []string{
		"plain", "", `quo"te`, `back\slash`, "NULL", "null", "{}", `{"a",b}`, "with,comma", " spaced ",
		"é\u2028🎈", "new\nline\ttab", "$1 ? %s", `\x41`, "'",
	}
	payloads := [][]byte{nil, {}, {0, 1, 255, '\\'}, []byte(`{"a":1}`), []byte(strings.Repeat("z", 3000))}
	events := make([]event.Event, n)
	for i := range events {
		text := texts[i%len(texts)]
		events[i] = event.Event{
			ID: event.NewID(), Source: "s" + text, Tenant: text, Topic: "payments", Key: text, Type: "T" + text,
			ContentType: text, Payload: payloads[i%len(payloads)],
		}
		if i%3 == 0 {
			events[i].Headers = map[string]string{"n": strconv.Itoa(i), "h" + text: text}
		}
		if i%2 == 0 {
			events[i].Time = time.Date(2026, 1, 2, 3, 4, i%60, 123456000, time.UTC)
		}
	}
	return events
}

func equal(t testing.TB, got, want []event.Event) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d events stored, want %d", len(got), len(want))
	}
	for i := range want {
		if (got[i].Payload == nil) != (want[i].Payload == nil) || !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("event %d\n got %#v\nwant %#v", i, got[i], want[i])
		}
	}
}

// sizes cover one statement for one, one for many, and COPY.
var sizes = []int{0, 1, 2, 45, 450}

var modes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

func TestAppendInEveryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(strings.ReplaceAll(mode.String(), " ", "_"), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, migrations.Outbox)
			pool := poolIn(t, db, mode)
			var want []event.Event
			for _, n := range sizes {
				events := awkward(n)
				inTx(t, pool, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, events...) })
				want = append(want, events...)
				equal(t, stored(t, db), want)
			}
		})
	}
}

func poolIn(t testing.TB, db *pgtest.DB, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func inTx(t testing.TB, pool *pgxpool.Pool, do func(tx pgx.Tx) error) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), pool, do); err != nil {
		t.Fatal(err)
	}
}

// Other drivers and bun: verify/interop.
func TestAppendSQLInEveryMode(t *testing.T) {
	t.Parallel()
	for name, params := range map[string]string{
		"pgx": "", "pgx_exec": "&default_query_exec_mode=exec",
		"pgx_simple_protocol": "&default_query_exec_mode=simple_protocol",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, migrations.Outbox)
			pool := openSQL(t, db.URL+params)
			var want []event.Event
			for _, n := range sizes {
				events := awkward(n)
				tx, err := pool.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := (outbox.Appender{}).AppendSQL(t.Context(), tx, events...); err != nil {
					t.Fatal(err)
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				want = append(want, events...)
				equal(t, stored(t, db), want)
			}
		})
	}
}

func openSQL(t testing.TB, url string) *sql.DB {
	t.Helper()
	pool, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// prepared is a transaction as GORM has it with PrepareStmt: no *sql.Tx, and every statement is prepared first.
type prepared struct{ *sql.Tx }

func (p prepared) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	s, err := p.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.ExecContext(ctx, args...)
}

// TestAppendSQLInGORM: what tx.Statement.ConnPool is there, with and without PrepareStmt.
func TestAppendSQLInGORM(t *testing.T) {
	t.Parallel()
	for name, pool := range map[string]func(tx *sql.Tx) any{
		"plain":       func(tx *sql.Tx) any { return tx },
		"PrepareStmt": func(tx *sql.Tx) any { return prepared{tx} },
	} {
		db := pgtest.New(t, migrations.Outbox)
		events := awkward(45)
		tx, err := openSQL(t, db.URL).BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := outbox.AppendSQL(t.Context(), pool(tx).(outbox.SQLTx), events...); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		equal(t, stored(t, db), events)
	}
}

func TestRolledBackLeavesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	for _, n := range sizes {
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := outbox.Append(t.Context(), tx, awkward(n)...); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, stored(t, db), nil)
}

func TestDefaultsOfAppend(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	for _, n := range sizes {
		events := make([]event.Event, n)
		for i := range events {
			events[i] = event.Event{Topic: "t", Type: "T", Time: time.Date(9999, 12, 31, 23, 59, 59, 999999999,
				time.UTC)}
		}
		if n > 1 {
			events[1].Source = "own"
		}
		before := slices.Clone(events)
		inTx(t, db.Pool, func(tx pgx.Tx) error {
			return outbox.Appender{Source: "shop", Schema: db.Schema}.Append(t.Context(), tx, events...)
		})
		if !reflect.DeepEqual(events, before) {
			t.Fatal("the caller's events were changed")
		}
		for i, e := range stored(t, db) {
			if _, ok := event.IDTime(e.ID); !ok {
				t.Errorf("event %d has id %s, want a UUIDv7", i, e.ID)
			}
			want := "shop"
			if i == 1 {
				want = "own"
			}
			if e.Source != want || e.ContentType != "" || e.Payload != nil || e.Time.Year() != 9999 {
				t.Errorf("event %d of %d: %+v", i, n, e)
			}
		}
		db.Exec(t, "delete from outbox_event where $1", true)
	}
}

func TestLargeBatchIsCutInOrder(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	events := make([]event.Event, 20)
	for i := range events {
		events[i] = event.Event{
			ID: event.NewID(), Topic: "t", Key: "k", Type: "T",
			Payload: []byte(strings.Repeat(fmt.Sprint(i%10), 1_000_000)),
		}
	}
	pool := openSQL(t, db.URL)
	tx, err := pool.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	spy := &countingTx{SQLTx: tx}
	if err := (outbox.Appender{}).AppendSQL(t.Context(), spy, events...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if len(spy.args) != 3 || slices.Contains(spy.args, 0) {
		t.Errorf("20 MB went in statements with %v arguments, want 3 statements", spy.args)
	}
	inTx(t, db.Pool, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, rename(events)...) })
	got := stored(t, db)
	for i := range got {
		if got[i].Payload[0] != events[i%20].Payload[0] || len(got[i].Payload) != 1_000_000 {
			t.Fatalf("event %d is out of order", i)
		}
	}
}

func rename(events []event.Event) []event.Event {
	events = slices.Clone(events)
	for i := range events {
		events[i].ID = event.NewID()
	}
	return events
}

// countingTx notes how many arguments each statement had.
type countingTx struct {
	outbox.SQLTx
	args []int
}

func (c *countingTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	c.args = append(c.args, len(args))
	return c.SQLTx.ExecContext(ctx, query, args...)
}

// The retry of database/sql and pgx for statements without arguments may run them twice.
func TestStatementsHaveArguments(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	tx, err := openSQL(t, db.URL).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	spy := &countingTx{SQLTx: tx}
	for _, n := range sizes {
		spy.args = nil
		if err := (outbox.Appender{}).AppendSQL(t.Context(), spy, awkward(n)...); err != nil {
			t.Fatal(err)
		}
		if len(spy.args) != min(n, 1) || slices.Contains(spy.args, 0) {
			t.Errorf("%d events: statements with %v arguments", n, spy.args)
		}
	}
	spy.args = nil
	if err := outbox.LockKeysSQL(t.Context(), spy, "a", "b"); err != nil || !slices.Equal(spy.args, []int{1}) {
		t.Errorf("LockKeysSQL: %v, arguments %v", err, spy.args)
	}
}

func TestQueriesPrepare(t *testing.T) {
	t.Parallel()
	pgtest.PrepareAll(t, pgtest.New(t, migrations.Outbox), outbox.Queries)
}

// TestSwallowedEventsAreRefused: a trigger that swallows rows makes no door say that the events are appended.
func TestSwallowedEventsAreRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	db.Exec(t, `create function swallows() returns trigger language plpgsql as $$ begin return null; end $$`)
	for _, table := range []string{"outbox_event", "outbox_scheduled"} {
		db.Exec(t, `create trigger swallows before insert on `+table+` for each row execute function swallows()`)
	}
	doors := map[string]func(events []event.Event) error{
		"Append": func(events []event.Event) error {
			return pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				return outbox.Append(t.Context(), tx, events...)
			})
		},
		"AppendSQL": func(events []event.Event) error {
			tx, err := openSQL(t, db.URL).BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			return outbox.AppendSQL(t.Context(), tx, events...)
		},
		"Queue": func(events []event.Event) error {
			var b pgx.Batch
			if err := outbox.Queue(t.Context(), &b, events...); err != nil {
				return err
			}
			return db.Pool.SendBatch(t.Context(), &b).Close()
		},
	}
	for name, door := range doors {
		for _, n := range sizes[1:] {
			for _, at := range []time.Time{{}, time.Now().Add(time.Hour)} {
				events := awkward(n)
				for i := range events {
					events[i].NotBefore = at
				}
				if err := door(events); err == nil || !strings.Contains(err.Error(), "the table took 0") {
					t.Errorf("%s of %d events for %v: %v", name, n, at, err)
				}
			}
		}
	}
}

// An id names an event for ever: one that a transaction has appended before, and a consumed event, are refused, and the
// transaction is as good as before.
func TestAppendRefusesAnIDGivenBefore(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "outbox")
	cause := event.Event{ID: event.NewID(), Topic: "orders", Type: "OrderPlaced"}
	line := func(name string) event.Event {
		return event.Derive(cause, name, event.Event{Topic: "lines", Type: "LineAdded"})
	}
	refused := func(err error, field string) {
		t.Helper()
		if e, ok := errors.AsType[*outbox.EventError](err); !ok || e.Field != field {
			t.Errorf("%v, want a refusal of %s", err, field)
		}
	}
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if err := outbox.Append(t.Context(), tx, line("line 1"), line("line 2")); err != nil {
			return err
		}
		refused(outbox.Append(t.Context(), tx, line("line 2")), "ID")
		// Of what is to come now and what is to come later nothing is sent if one is refused.
		later := line("line 2")
		later.NotBefore = time.Now().Add(time.Hour)
		err := outbox.Append(t.Context(), tx, line("line 4"), later)
		refused(err, "ID")
		if e, ok := errors.AsType[*outbox.EventError](err); ok && e.Index != 1 {
			t.Errorf("event %d is refused, want the second", e.Index)
		}
		consumed := event.Event{ID: event.NewID(), Topic: "orders", Type: "OrderPlaced", Raw: []byte{0}}
		refused(outbox.Append(t.Context(), tx, consumed), "Raw")
		return outbox.Append(t.Context(), tx, line("line 3"))
	})
	if err != nil {
		t.Fatal(err)
	}
	// Another transaction may be a retry, whose first run was rolled back.
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return outbox.Append(t.Context(), tx, line("line 2"))
	}); err != nil {
		t.Error(err)
	}
	if n := pgtest.One[int](t, db, "select count(*) from outbox_event"); n != 4 {
		t.Errorf("%d events, want 4", n)
	}
}
