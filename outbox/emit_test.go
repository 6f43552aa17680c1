package outbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// TestEmitInserts: where no relay takes emitted events, Emit writes the rows that Append would, by one statement for one event or for many.
func TestEmitInserts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	want := awkward(60)
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		for i := range 20 {
			if err := outbox.Emit(t.Context(), tx, want[i]); err != nil {
				return err
			}
		}
		return outbox.Emit(t.Context(), tx, want[20:]...)
	})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, stored(t, db), want)
}

// TestEmitChecks: what Append refuses, Emit refuses; what is due later waits in the table.
func TestEmitChecks(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		var refused *outbox.EventError
		if err := outbox.Emit(t.Context(), tx, event.Event{Topic: "a b", Type: "T"}); !errors.As(err, &refused) || refused.Field != "Topic" {
			t.Errorf("a bad topic: %v", err)
		}
		return outbox.Emit(t.Context(), tx, event.Event{Topic: "t", Type: "T"}, event.Event{Topic: "t", Type: "T", NotBefore: time.Now().Add(time.Hour)})
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := pgtest.One[int](t, db, `select (select count(*) from outbox_event) * 10 + (select count(*) from outbox_scheduled)`); n != 11 {
		t.Errorf("%d rows and scheduled ones", n)
	}
	if err := outbox.Emit(t.Context(), nil); err == nil {
		t.Error("without a transaction")
	}
	if err := (outbox.Appender{}).EmitSQL(t.Context(), nil); err == nil {
		t.Error("without a transaction")
	}
}

// TestEmitSQLWithEveryDriver: the statements are understood through all of them.
func TestEmitSQLWithEveryDriver(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, driver, params string }{
		{"pgx", "pgx", ""},
		{"pgx_simple_protocol", "pgx", "&default_query_exec_mode=simple_protocol"},
		{"pq", "postgres", ""},
		{"pq_binary_parameters", "postgres", "&binary_parameters=yes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, migrations.Outbox)
			events := awkward(17)
			tx, err := openSQL(t, c.driver, db.URL+c.params).BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join((outbox.Appender{}).EmitSQL(t.Context(), tx, events[0]), (outbox.Appender{}).EmitSQL(t.Context(), tx, events[1:]...), tx.Commit()); err != nil {
				t.Fatal(err)
			}
			equal(t, stored(t, db), events)
		})
	}
}
