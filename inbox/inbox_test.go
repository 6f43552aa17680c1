package inbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// world is a schema with the inbox's tables and a table that effects write to.
type world struct {
	*pgtest.DB
	t testing.TB
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{pgtest.New(t, "inbox"), t}
	pgtest.AwaitDay(t, w.DB)
	w.Exec(t, "create table effect (n bigint generated always as identity, id uuid not null, what text not null "+
		"default '')")
	return w
}

func (w *world) inbox(cfg inbox.Config) *inbox.Inbox {
	w.t.Helper()
	if cfg.Backoff == 0 {
		cfg.Backoff = time.Millisecond
	}
	if cfg.Window == 0 {
		cfg.Window, cfg.AllowShortWindow, cfg.DaysAhead = 24*time.Hour, true, 1 // creating days takes time
	}
	in, err := inbox.New(w.Pool, "ledger", cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return in
}

// halting returns an inbox with the policy Halt.
func (w *world) halting(cfg inbox.Config) *inbox.Inbox {
	w.t.Helper()
	cfg.OnFailure = inbox.Halt
	return w.inbox(cfg)
}

// effects returns the applied ids, in order.
func (w *world) effects() []uuid.UUID {
	w.t.Helper()
	rows, err := w.Pool.Query(w.t.Context(), "select id from effect order by n")
	if err != nil {
		w.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		w.t.Fatal(err)
	}
	return ids
}

// rows counts the ids that the inbox remembers, in both tables.
func (w *world) rows() (days, others int) {
	return pgtest.One[int](w.t, w.DB, "select count(*) from inbox_message"),
		pgtest.One[int](w.t, w.DB, "select count(*) from inbox_message_any")
}

// write is an effect that inserts one row per event.
func write(ctx context.Context, tx pgx.Tx, e event.Event) error {
	_, err := tx.Exec(ctx, "insert into effect (id, what) values ($1, $2)", e.ID.String(), e.Type)
	return err
}

// writeAll is a batch effect that inserts one row per event, in one statement.
func writeAll(ctx context.Context, tx pgx.Tx, events []event.Event) error {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.ID.String()
	}
	_, err := tx.Exec(ctx, "insert into effect (id) select unnest($1::text[])::uuid", ids)
	return err
}

// some returns n events whose ids have the present time.
func some(n int) []event.Event {
	events := make([]event.Event, n)
	for i := range events {
		events[i] = event.Event{
			ID: event.NewID(), Topic: "payments", Type: "PaymentCreated", Key: "k", Payload: []byte("{}"),
			Position: event.Position{Partition: 3, Offset: int64(i)},
		}
	}
	return events
}

// idAt returns a UUIDv7 of the given time.
func idAt(at time.Time) uuid.UUID {
	return event.Derive(event.Event{Time: at}, uuid.NewString(), event.Event{}).ID
}

func ids(events []event.Event) []uuid.UUID {
	list := make([]uuid.UUID, len(events))
	for i, e := range events {
		list[i] = e.ID
	}
	return list
}

func handle(t testing.TB, h inbox.Handler, events []event.Event) []inbox.Outcome {
	t.Helper()
	out, err := h.Handle(t.Context(), events)
	if err != nil {
		t.Fatalf("Handle: %v (outcomes %v)", err, out)
	}
	return out
}

// handleTwin is handle beside others that read the same log again: this one has lost the partition to them, and begins
// anew.
func handleTwin(t testing.TB, h inbox.Handler, events []event.Event) {
	t.Helper()
	for {
		out, err := h.Handle(t.Context(), events)
		if _, moved := errors.AsType[*inbox.DatabaseChangedError](err); moved {
			continue
		}
		if err != nil {
			t.Errorf("Handle: %v (outcomes %v)", err, out)
		}
		return
	}
}

func same[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: got %d %v, want %d %v", what, len(got), got, len(want), want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: at %d got %v, want %v\n got %v\nwant %v", what, i, got[i], want[i], got, want)
		}
	}
}

func repeat(o inbox.Outcome, n int) []inbox.Outcome {
	list := make([]inbox.Outcome, n)
	for i := range list {
		list[i] = o
	}
	return list
}

func TestP9_2_EachAndBatchApplyOnce(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]func(*inbox.Inbox) inbox.Handler{
		"each":  func(in *inbox.Inbox) inbox.Handler { return in.Each(write) },
		"batch": func(in *inbox.Inbox) inbox.Handler { return in.Batch(writeAll) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			h := handler(w.inbox(inbox.Config{}))
			events := some(20)
			events[3].ID, events[7].ID = uuid.New(), event.ForeignID("shop", "order-1")
			same(t, "first", handle(t, h, events), repeat(inbox.Applied, 20))
			same(t, "effects", w.effects(), ids(events))
			same(t, "again", handle(t, h, events), repeat(inbox.Duplicate, 20))
			more := append(some(1), events[3], events[5])
			more = append(more, more[0])
			same(t, "mixed", handle(t, h, more), []inbox.Outcome{
				inbox.Applied, inbox.Duplicate, inbox.Duplicate,
				inbox.Duplicate,
			})
			same(t, "effects", w.effects(), ids(append(events, more[0])))
			if days, others := w.rows(); days != 19 || others != 2 {
				t.Errorf("%d rows in days and %d in any, want 19 and 2", days, others)
			}
		})
	}
}

func TestP9_2_IDTwiceInBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := some(3)
	events = append(events, events[0], events[2])
	want := append(repeat(inbox.Applied, 3), repeat(inbox.Duplicate, 2)...)
	same(t, "outcomes", handle(t, w.inbox(inbox.Config{}).Batch(writeAll), events), want)
	same(t, "effects", w.effects(), ids(events[:3]))
}

func TestP9_2_TwinsAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := some(50)
	entered, leave := make(chan struct{}), make(chan struct{})
	slow := w.inbox(inbox.Config{}).Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		close(entered)
		<-leave
		return writeAll(ctx, tx, events)
	})
	var wg sync.WaitGroup
	wg.Go(func() { same(t, "first", handle(t, slow, events), repeat(inbox.Applied, 50)) })
	<-entered
	retried := make(chan struct{}, 1000)
	waiting := w.inbox(inbox.Config{
		LockTimeout: 20 * time.Millisecond,
		Observer: inbox.Observer{Retried: func(r inbox.RetriedInfo) {
			if r.Reason == "conflict" {
				retried <- struct{}{}
			}
		}},
	}).Batch(writeAll)
	wg.Go(func() { same(t, "twin", handle(t, waiting, events), repeat(inbox.Duplicate, 50)) })
	<-retried // the twin waited for the first one's rows and ran into the lock time-out
	close(leave)
	wg.Wait()
	same(t, "effects", w.effects(), ids(events))
}
