package outbox_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// TestP8ScheduledEventsAreStoredApart: one, a statement of many, a COPY; beside events of now; by pgx and database/sql.
func TestP8ScheduledEventsAreStoredApart(t *testing.T) {
	t.Parallel()
	due := time.Now().Add(48 * time.Hour).Truncate(time.Microsecond)
	for _, n := range []int{1, 5, 80} {
		for _, way := range []string{"pgx", "sql"} {
			t.Run(fmt.Sprint(way, n), func(t *testing.T) {
				t.Parallel()
				db := pgtest.New(t, migrations.Outbox)
				own := event.NewID()
				var events []event.Event
				for i := range n {
					e := event.Event{
						Topic: "reminders", Key: "k", Type: "T", Payload: []byte(fmt.Sprint(i)),
						NotBefore: due.Add(time.Duration(i%3) * time.Hour),
					}
					if i == 0 {
						e.ID, e.Time = own, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
					}
					events = append(events, e)
				}
				events = append(events, event.Event{
					Topic: "reminders", Key: "k", Type: "Now",
					NotBefore: time.Now().Add(-time.Hour),
				})
				if err := appendBy(t, way, db, events); err != nil {
					t.Fatal(err)
				}
				if got := pgtest.One[string](t, db,
					`select count(*) || ' ' || min(type) from outbox_event`); got != "1 Now" {
					t.Errorf("outbox_event has %s", got)
				}
				got := pgtest.One[int](t, db,
					`select count(*) from outbox_scheduled s join generate_series(0, $1::int - 1) i
					on s.payload = convert_to(i::text, 'UTF8') and s.due = $2::timestamptz + (i % 3) * interval '1 hour'
					and s.event_time is not distinct from case
					when i = 0 then timestamptz '2026-01-02 03:04:05+00' end`, n, due)
				if got != n {
					t.Errorf("%d of %d events are scheduled as they should be", got, n)
				}
				for i, id := range ids(t, db) {
					at, ok := event.IDTime(id)
					switch {
					case i == 0 && id != own:
						t.Errorf("the caller's id became %s", id)
					case i > 0 && (!ok || at.Sub(events[i].NotBefore).Abs() > time.Millisecond):
						t.Errorf("id %s is of %v, due is %v", id, at, events[i].NotBefore)
					}
				}
			})
		}
	}
}

func appendBy(t *testing.T, way string, db *pgtest.DB, events []event.Event) error {
	t.Helper()
	if way == "pgx" {
		return pgx.BeginFunc(t.Context(), db.Pool,
			func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, events...) })
	}
	std, err := sql.Open("pgx", db.URL)
	if err != nil {
		return err
	}
	defer func() { _ = std.Close() }()
	tx, err := std.BeginTx(t.Context(), nil)
	if err != nil {
		return err
	}
	if err := (outbox.Appender{}).AppendSQL(t.Context(), tx, events...); err != nil {
		return err
	}
	return tx.Commit()
}

func ids(t *testing.T, db *pgtest.DB) []uuid.UUID {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `select message_id from outbox_scheduled order by seq`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestP8TooOldIDsAreRefused: no inbox could tell whether it has applied them.
func TestP8TooOldIDsAreRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	day := 24 * time.Hour
	try := func(a outbox.Appender, id uuid.UUID, in time.Duration) error {
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		return a.Append(t.Context(), tx, event.Event{ID: id, Topic: "t", Type: "T", NotBefore: time.Now().Add(in)})
	}
	for name, c := range map[string]struct {
		appender outbox.Appender
		id       uuid.UUID
		in       time.Duration
		refused  bool
	}{
		"inside the window":           {outbox.Appender{}, event.NewID(), 13 * day, false},
		"beyond it":                   {outbox.Appender{}, event.NewID(), 15 * day, true},
		"beyond, no id":               {outbox.Appender{}, uuid.Nil, 15 * day, false},
		"beyond, id of the day":       {outbox.Appender{}, event.IDAt(time.Now().Add(15 * day)), 15 * day, false},
		"beyond, an id that is no v7": {outbox.Appender{}, uuid.New(), 15 * day, false},
		"a longer window":             {outbox.Appender{InboxWindow: 30 * day}, event.NewID(), 15 * day, false},
		"a shorter window":            {outbox.Appender{InboxWindow: day}, event.NewID(), 2 * day, true},
		"not checked":                 {outbox.Appender{InboxWindow: -1}, event.NewID(), 400 * day, false},
	} {
		var refused *outbox.EventError
		err := try(c.appender, c.id, c.in)
		if errors.As(err, &refused) != c.refused ||
			(c.refused && (refused.Field != "ID" || !strings.Contains(err.Error(), "InboxWindow"))) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestP8ProducersNeedOnlyInsert, and cannot choose a place in the order.
func TestP8ProducersNeedOnlyInsert(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	role := "scheduler_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	conn := db.Connect(t)
	for _, sql := range []string{
		`begin`, `create role ` + role, `grant usage on schema ` + db.Schema + ` to ` + role,
		`grant insert (due, message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time) on outbox_scheduled to ` + role,
		`set local role ` + role,
		`insert into outbox_scheduled (due, topic, type) values (now() + interval '1 hour', 't', 'T')`,
		`savepoint s`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	if _,
		err := conn.Exec(t.Context(),
		`insert into outbox_scheduled (seq, due, topic, type) overriding system value values (1, now(), 't', 'T')`); err == nil {
		t.Error("a producer chose its seq")
	}
	_, _ = conn.Exec(t.Context(), `rollback`)
}
