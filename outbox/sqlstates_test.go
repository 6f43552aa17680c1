package outbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// TestSQLStates: each SQLSTATE of the server, raised by a trigger under each statement of Append and at the COMMIT, for
// one key. The producer gets the error as it is, and its transaction writes nothing; other keys are appended.
func TestSQLStates(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	faults := pgtest.NewFaults(t, db)
	produce := func(events []event.Event) error {
		return pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
			return outbox.Append(t.Context(), tx, events...)
		})
	}
	keys := func(name string, n int) (events []event.Event) {
		for i := range n {
			key := fmt.Sprint(name, " ", i)
			events = append(events, event.Event{Topic: "payments", Key: key, Type: "T", Payload: []byte("{}")})
		}
		return events
	}
	hand := pgtest.DealCodes(t, db, draw.Size(20, 250), 0, nil)
	cells := 0
	for _, n := range []int{1, 3, 60} {
		for _, late := range []bool{false, true} {
			events, others := keys("key", n), keys("other", n)
			at := pgtest.Place{Table: "outbox_event", Op: "INSERT"}
			if late {
				at.Statement = pgtest.AtCommit
			}
			for _, code := range hand() {
				lift := faults.Raise(t, pgtest.Fault{Place: at, Field: "key", Value: events[n-1].Key}, code)
				err := produce(events)
				if err == nil || !strings.Contains(err.Error(), "(SQLSTATE "+code+")") {
					t.Errorf("%d events, late %t, %s: %v", n, late, code, err)
				}
				err = produce(others)
				lift()
				if err = errors.Join(err, produce(events)); err != nil {
					t.Errorf("%d events, late %t, %s: others, or again: %v", n, late, code, err)
				}
				if got := pgtest.One[int](t, db, "select count(*) from outbox_event"); got != 2*n {
					t.Errorf("%d events, late %t, %s: %d rows, want %d", n, late, code, got, 2*n)
				}
				db.Exec(t, "delete from outbox_event")
				cells++
			}
		}
	}
	t.Logf("%d cells", cells)
}
