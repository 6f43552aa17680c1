package outbox_test

import (
	"context"
	"errors"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// grants is the documentation's, word for word.
const grants = `grant insert (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)`

func TestPlainSQLInPsql(t *testing.T) {
	t.Parallel()
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skip("psql is not installed")
	}
	db := pgtest.New(t, migrations.Outbox)
	for _, url := range []string{
		pgtest.WithSearchPath(t, db.AdminURL, "pg_catalog"),
		pgtest.WithSearchPath(t, db.AdminURL, ""),
	} {
		out, err := exec.Command(psql, "-Xq", "-v", "ON_ERROR_STOP=1", url, "-c", `insert into `+db.Schema+
			`.outbox_event (topic, key, type, payload)
			values ('payments', 'acc-1', 'PaymentCreated', convert_to('{"amount":100}', 'UTF8'))`).CombinedOutput()
		if err != nil {
			t.Fatalf("psql with %s: %s", url, out)
		}
	}
	now := pgtest.One[time.Time](t, db, "select clock_timestamp()")
	events := stored(t, db)
	if len(events) != 2 || events[0].ID == events[1].ID {
		t.Fatalf("stored %+v", events)
	}
	for _, e := range events {
		at, ok := event.IDTime(e.ID)
		if !ok || now.Sub(at).Abs() > time.Hour {
			t.Errorf("id %s is not a UUIDv7 of now (%v, %v)", e.ID, at, now)
		}
		if string(e.Payload) != `{"amount":100}` || e.ContentType != event.ContentTypeJSON || e.Key != "acc-1" ||
			e.Headers != nil {
			t.Errorf("stored %+v", e)
		}
	}
}

// A key must have one lane whoever appends, and from whichever search_path.
func TestLaneDoesNotDependOnTheWriter(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	inTx(t, db.Pool, func(tx pgx.Tx) error {
		return outbox.Append(t.Context(), tx, event.Event{Topic: "t", Type: "T", Key: "acc-1"})
	})
	inTx(t, db.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "set local search_path = pg_catalog"); err != nil {
			return err
		}
		if err := (outbox.Appender{Schema: db.Schema}).Append(t.Context(), tx,
			event.Event{Topic: "u", Type: "U", Key: "acc-1"}); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), "insert into "+db.Schema+".outbox_event (topic, type, key) values ('t', 'T', "+
			"'acc-1')")
		return err
	})
	if n := pgtest.One[int](t, db, "select count(distinct lane)::int from outbox_event"); n != 1 {
		t.Errorf("the key has %d lanes", n)
	}
}

func TestColumnLevelInsertIsEnough(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	role := producer(t, db)
	for _, mode := range modes {
		conn := connectAs(t, db, role, mode)
		for _, n := range sizes {
			err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				return outbox.Appender{Schema: db.Schema}.Append(t.Context(), tx, awkward(n)...)
			})
			if err != nil {
				t.Fatalf("%v, %d events: %v", mode, n, err)
			}
		}
	}
	conn := connectAs(t, db, role, pgx.QueryExecModeExec)
	for sql, allowed := range map[string]bool{
		"insert into outbox_event (topic, key, type, payload) values ('t', 'k', 'T', '')":                  true,
		"insert into outbox_event (topic, type, id) values ('t', 'T', 1)":                                  false,
		"insert into outbox_event (topic, type, id) overriding system value values ('t', 'T', 1)":          false,
		"insert into outbox_event (topic, type, lane) values ('t', 'T', 1)":                                false,
		"insert into outbox_event (topic, type, created_at) values ('t', 'T', '2000-01-01')":               false,
		"update outbox_event set topic = 'u'":                                                              false,
		"delete from outbox_event":                                                                         false,
		"select topic from outbox_event":                                                                   false,
		"select nextval(pg_get_serial_sequence('outbox_event', 'id'))":                                     false,
		"update outbox_lane set fence = 0":                                                                 false,
		"insert into outbox_claim (lane, first_seq, ids, seqs) values (1, 1, '{1}', '{1}')":                false,
		"insert into outbox_event (topic, type) values ('t', 'T') on conflict do nothing":                  true,
		"insert into outbox_event (topic, type) values ('t', 'T') returning id":                            false,
		"copy outbox_event (topic, type) from program 'true'":                                              false,
		"insert into outbox_event (topic, type, headers) values ('t', 'T', '{\"traceparent\":\"00-01\"}')": true,
	} {
		_, err := conn.Exec(t.Context(), sql)
		var refused *pgconn.PgError
		switch {
		case allowed && err != nil:
			t.Errorf("%s: %v", sql, err)
		case !allowed && (!errors.As(err, &refused) || refused.Code != "42501" && refused.Code != "428C9"):
			t.Errorf("%s: %v, want a refusal", sql, err)
		}
	}
}

// producer makes a role with the documented grants and nothing else.
func producer(t *testing.T, db *pgtest.DB) string {
	t.Helper()
	role := db.Schema + "_p"
	db.Exec(t, "create role "+role)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, sql := range []string{"drop owned by " + role, "drop role " + role} {
			if _, err := db.Pool.Exec(ctx, sql); err != nil {
				t.Error(err)
			}
		}
	})
	db.Exec(t, "grant usage on schema "+db.Schema+" to "+role)
	db.Exec(t, grants+" on "+db.Schema+".outbox_event to "+role)
	return role
}

func connectAs(t *testing.T, db *pgtest.DB, role string, mode pgx.QueryExecMode) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = conn.Close(ctx)
	})
	if _, err := conn.Exec(t.Context(), "set role "+role); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestRefusedByGrantsSaysWhatToDo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	role := producer(t, db)
	db.Exec(t, "revoke all on outbox_event from "+role)
	db.Exec(t, "revoke insert (topic) on outbox_event from "+role)
	for _, n := range []int{1, 2, outbox.CopyFrom} {
		err := pgx.BeginFunc(t.Context(), connectAs(t, db, role, pgx.QueryExecModeCacheStatement),
			func(tx pgx.Tx) error {
				return outbox.Append(t.Context(), tx, awkward(n)...)
			})
		if err == nil || !strings.Contains(err.Error(), "grant insert") {
			t.Errorf("%d events: %v", n, err)
		}
	}
}

// TestP1UnreadableRowsAreRefused: one row that a relay cannot read would stop its lanes for ever, so the tables refuse
// what any language may try to write.
func TestP1UnreadableRowsAreRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	for table, due := range map[string]bool{"outbox_event": false, "outbox_scheduled": true} {
		for _, c := range []struct{ column, value string }{
			{"topic", `''`},
			{"topic", `'.'`},
			{"topic", `'..'`},
			{"topic", `'a b'`},
			{"topic", `repeat('t', 250)`},
			{"type", `''`},
			{"key", `repeat('k', 8193)`},
			{"message_id", `'00000000-0000-0000-0000-000000000000'`},
			{"message_id", `'ffffffff-ffff-ffff-ffff-ffffffffffff'`},
			{"headers", `'{"a":["x"]}'`},
			{"headers", `'{"a":[]}'`},
			{"headers", `'{"a":{"b":"x"}}'`},
			{"headers", `'{"a":null}'`},
			{"headers", `'["x"]'`},
			{"headers", `'{"ce_id":"x"}'`},
			{"headers", `(select jsonb_object_agg('h' || i, '') from generate_series(1, 101) i)`},
			{"event_time", `'infinity'`},
			{"event_time", `'-infinity'`},
			{"event_time", `'4000-01-01 BC'`},
			{"event_time", `'10000-01-02'`},
			{"created_at", `'infinity'`},
			{"created_at", `'10000-01-02'`}, // the move of a scheduled event would make it the event's time
		} {
			values := map[string]string{"topic": "'t'", "type": "'T'"}
			if due {
				values["due"] = "now()"
			}
			values[c.column] = c.value
			columns := slices.Sorted(maps.Keys(values))
			var list []string
			for _, column := range columns {
				list = append(list, values[column])
			}
			_, err := db.Pool.Exec(t.Context(), "insert into "+table+" ("+strings.Join(columns, ", ")+") values ("+
				strings.Join(list, ", ")+")")
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || refused.Code != "23514" {
				t.Errorf("%s takes %s %s: %v", table, c.column, c.value, err)
			}
		}
	}
}
