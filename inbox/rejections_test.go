package inbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// typed sets the key and the type of each event.
func typed(events []event.Event, keys, types string) []event.Event {
	for i := range events {
		events[i].Key, events[i].Type = keys[i:i+1], types[i:i+1]
	}
	return events
}

// effectOf is write, but for type N it writes a column that does not exist yet.
func effectOf(ctx context.Context, tx pgx.Tx, e event.Event) error {
	if e.Type != "N" {
		return write(ctx, tx, e)
	}
	_, err := tx.Exec(ctx, "insert into effect (id, added) values ($1, $2)", e.ID.String(), e.Type)
	return err
}

// auditAtCommit makes COMMIT write effects of type N to a table that does not exist yet.
const auditAtCommit = `create function audit() returns trigger language plpgsql as
	'begin insert into audit values (new.id); return null; end';
create constraint trigger audit after insert on effect deferrable initially deferred
	for each row when (new.what = 'N') execute function audit()`

// TestP9_5_MissingColumnParksOneKey: the program is newer than the tables that its effect writes. At most one key is
// parked, also if events of other types are applied meanwhile. The partition is recorded as waiting for an operator,
// and its events are applied once the column exists.
func TestP9_5_MissingColumnParksOneKey(t *testing.T) {
	t.Parallel()
	const column = "alter table effect add added text"
	var cases sync.WaitGroup
	defer cases.Wait()
	for name, tt := range map[string]struct {
		before, repair string
		handler        func(*inbox.Inbox) inbox.Handler
	}{
		"each": {"", column, func(in *inbox.Inbox) inbox.Handler { return in.Each(effectOf) }},
		"batch": {"", column, func(in *inbox.Inbox) inbox.Handler {
			return in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
				for _, e := range events {
					if err := effectOf(ctx, tx, e); err != nil {
						return err
					}
				}
				return nil
			})
		}},
		"commit": {auditAtCommit, "create table audit (id uuid)", func(in *inbox.Inbox) inbox.Handler {
			return in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				_, err := tx.Exec(ctx, "insert into effect (id, what) values ($1, $2)", e.ID.String(), e.Type)
				return err
			})
		}},
	} {
		run := func(t *testing.T) {
			w := newWorld(t)
			w.Exec(t, tt.before)
			told := make(chan inbox.RetriedInfo, 10000)
			observer := inbox.Observer{Retried: func(i inbox.RetriedInfo) { told <- i }}
			h := tt.handler(w.inbox(inbox.Config{MaxAttempts: 2, Observer: observer}))
			assigned(h)
			type result struct {
				out []inbox.Outcome
				err error
			}
			decided := make(chan result, 1)
			go func() {
				out, err := h.Handle(t.Context(), typed(some(8), "aabbccdd", "ONONONON"))
				decided <- result{out, err}
			}()
			for noted := false; !noted; {
				select {
				case r := <-told:
					noted = r.Reason == "rejected" && r.Attempt >= 10
				case r := <-decided:
					t.Fatalf("without the column: %v (%v), want at most one key parked", r.out, r.err)
				}
			}
			if n := pgtest.One[int](t, w.DB,
				"select count(*) from inbox_progress where halted_code = 'rejected'"); n != 1 {
				t.Errorf("%d partitions are recorded as waiting for an operator, want 1", n)
			}
			w.Exec(t, tt.repair)
			r := <-decided
			if r.err != nil {
				t.Fatal(r.err)
			}
			want := repeat(inbox.Applied, 8)
			want[1] = inbox.Parked
			same(t, "with the column", r.out, want)
			if n := pgtest.One[int](t, w.DB,
				"select count(*) from inbox_progress where halted_at is not null"); n != 0 {
				t.Error("the partition goes on and is still recorded as halted")
			}
		}
		cases.Go(func() { t.Run(name, run) }) // each waits most of the time
	}
}

// TestP9_5_OneKeyIsRejected: one key's effect uses a missing table while the same type is applied for other keys. Other
// effects return such an error as Terminal. Neither delays the partition.
func TestP9_5_OneKeyIsRejected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.inbox(inbox.Config{MaxAttempts: 2}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		err := write(ctx, tx, e)
		switch e.Key {
		case "b":
			_, err = tx.Exec(ctx, "insert into nowhere default values")
		case "d", "e", "f":
			_, err = tx.Exec(ctx, "insert into nowhere default values")
			err = outcome.Terminal("no_room", errors.Join(errors.New("of this tenant"), err))
		}
		return err
	})
	assigned(h)
	same(t, "outcomes", handle(t, h, typed(some(9), "abcbadefc", "OOOOOOOOO")), []inbox.Outcome{
		inbox.Applied, inbox.Parked, inbox.Applied, inbox.Parked, inbox.Applied, inbox.Parked, inbox.Parked,
		inbox.Parked, inbox.Applied,
	})
}
