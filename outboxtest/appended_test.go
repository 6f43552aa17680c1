package outboxtest_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outboxtest"
)

// TestAppended: Appended returns the transaction's own events in order, and no other.
func TestAppended(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	add := func(tx pgx.Tx, events ...event.Event) {
		t.Helper()
		if err := outbox.Append(t.Context(), tx, events...); err != nil {
			t.Fatal(err)
		}
	}
	committed := db.Begin(t)
	add(committed, newEvents("a", 2)...)
	if err := committed.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := db.Begin(t)
	add(other, newEvents("a", 1)...)

	tx := db.Begin(t)
	if got := outboxtest.Appended(t.Context(), t, tx, ""); len(got) != 0 {
		t.Errorf("nothing was appended, got %d events", len(got))
	}
	a, b, many := newEvents("a", 3), newEvents("b", 1), newEvents("a", 60) // 60: by COPY
	add(tx, a...)
	// Another transaction, with a higher id, commits meanwhile.
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	late := db.Begin(t)
	add(late, newEvents("a", 1)...)
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	add(kept, b...)
	if err := kept.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	undone, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	add(undone, newEvents("a", 1)...)
	if err := undone.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	inner, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	add(inner, many...)
	if got, want := ids(outboxtest.Appended(t.Context(), t, inner, "")), ids(slices.Concat(a, b, many)); !slices.Equal(
		got, want) {
		t.Errorf("every topic: got %v, want %v", got, want)
	}
	if got := ids(outboxtest.Appended(t.Context(), t, tx, "b")); !slices.Equal(got, ids(b)) {
		t.Errorf("topic b: got %v", got)
	}
}

// TestAppendedReturnsAllFields reads events over pgx and over database/sql.
func TestAppendedReturnsAllFields(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	sqlDB := stdlib.OpenDBFromPool(db.Pool)
	defer sqlDB.Close()
	at := time.Date(2024, 2, 29, 12, 0, 0, 1000, time.UTC)
	full := event.Event{
		ID: event.NewID(), Source: "s", Tenant: "te", Topic: "t", Key: "k", Type: "T", ContentType: "c", Time: at,
		Headers: map[string]string{"x": "é"}, Payload: []byte{0, 255},
	}
	bare := event.Event{Topic: "t", Type: "T"} // a tombstone
	tomorrow := time.Now().Add(24 * time.Hour).Truncate(time.Microsecond)
	later := event.Event{ID: event.NewID(), Topic: "t", Type: "T", NotBefore: tomorrow}
	check := func(how string, got []event.Event) {
		t.Helper()
		if len(got) != 3 {
			t.Fatalf("%s: got %d events", how, len(got))
		}
		e := got[0]
		if e.ID != full.ID || e.Source != "s" || e.Tenant != "te" || e.Key != "k" || e.Type != "T" ||
			e.ContentType != "c" ||
			!e.Time.Equal(at) || !maps.Equal(e.Headers, full.Headers) || string(e.Payload) != "\x00\xff" {
			t.Errorf("%s: got %+v", how, e)
		}
		if got[2].ID != later.ID || !got[2].NotBefore.Equal(tomorrow) {
			t.Errorf("%s: got %+v", how, got[2])
		}
		if e = got[1]; e.ID == uuid.Nil || e.Payload != nil || e.Headers != nil ||
			time.Since(e.Time).Abs() > time.Hour {
			t.Errorf("%s: got %+v", how, e)
		}
	}
	tx := db.Begin(t)
	if err := outbox.Append(t.Context(), tx, later, full, bare); err != nil {
		t.Fatal(err)
	}
	check("pgx", outboxtest.Outbox{Schema: db.Schema}.Appended(t.Context(), t, tx, "t"))
	_ = tx.Rollback(t.Context())
	sqlTx, err := sqlDB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sqlTx.Rollback() }()
	if err := (outbox.Appender{}).AppendSQL(t.Context(), sqlTx, later, full, bare); err != nil {
		t.Fatal(err)
	}
	check("database/sql", outboxtest.Outbox{}.AppendedSQL(t.Context(), t, sqlTx, "t"))
}

func TestAppendedErrors(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for want, do := range map[string]func(tb testing.TB){
		"run the outbox migrations": func(tb testing.TB) { outboxtest.Appended(t.Context(), tb, db.Begin(t), "") },
		"Outbox.Schema": func(tb testing.TB) {
			outboxtest.Outbox{Schema: "A-B"}.Appended(t.Context(), tb,
				db.Begin(t), "")
		},
		"not nil": func(tb testing.TB) { outboxtest.Appended(t.Context(), tb, nil, "") },
		"an earlier statement of this transaction failed": func(tb testing.TB) {
			tx := db.Begin(t)
			_, _ = tx.Exec(t.Context(), "select 1/0")
			outboxtest.Appended(t.Context(), tb, tx, "")
		},
	} {
		if got := fatalText(t, do); !strings.Contains(got, want) {
			t.Errorf("the test ended with %q, want %q in it", got, want)
		}
	}
}
