package outboxtest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outboxtest"
)

// config is an inbox with few daily partitions, which take a while to create.
func config() inbox.Config {
	return inbox.Config{
		Window: 24 * time.Hour, AllowShortWindow: true, DaysAhead: 1, Backoff: time.Millisecond,
		MaxAttempts: 2,
	}
}

func effects(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t, migrations.Inbox)
	db.Exec(t, "create table effect (n bigint generated always as identity, id uuid not null)")
	return db
}

func write(ctx context.Context, tx pgx.Tx, e event.Event) error {
	_, err := tx.Exec(ctx, "insert into effect (id) values ($1)", e.ID)
	return err
}

func handler(t *testing.T, db *pgxpool.Pool, do inbox.Effect) inbox.Handler {
	t.Helper()
	in, err := inbox.New(db, "test", config())
	if err != nil {
		t.Fatal(err)
	}
	return in.Each(do)
}

func TestDeliver(t *testing.T) {
	t.Parallel()
	db := effects(t)
	var seen []event.Event
	h := handler(t, db.Pool, func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		seen = append(seen, e)
		return write(ctx, tx, e)
	})
	events := []event.Event{
		{Topic: "a", Key: "k", Type: "T", Tenant: "te", Headers: map[string]string{"x": "y"}, Payload: []byte{}},
		{Topic: "b", Type: "T"},
		{Topic: "a", Type: "T"},
	}
	out, err := outboxtest.Deliver(t.Context(), t, h, events...)
	if err != nil || !slices.Equal(out, []inbox.Outcome{inbox.Applied, inbox.Applied, inbox.Applied}) {
		t.Fatalf("%v, %v", out, err)
	}
	// Topic by topic, with the fields of a record.
	if len(seen) != 3 || seen[0].Topic != "a" || seen[1].Topic != "a" || seen[2].Topic != "b" {
		t.Fatalf("seen %+v", seen)
	}
	if e := seen[0]; e.ID == uuid.Nil || e.Source != event.DefaultSource || e.Tenant != "te" || e.Headers["x"] != "y" ||
		e.Payload == nil {
		t.Errorf("seen %+v", e)
	}
	if seen[1].Position.Offset != 1 || seen[1].Payload != nil {
		t.Errorf("seen %+v", seen[1])
	}
	if events[0].ID != uuid.Nil {
		t.Error("the caller's event was changed")
	}
}

func TestDeliverError(t *testing.T) {
	t.Parallel()
	bad := errors.New("injected")
	events := newEvents("a", 3)
	h := halting{at: events[1].ID, err: bad}
	out, err := outboxtest.Deliver(t.Context(), t, h, append(events, newEvents("b", 1)...)...)
	if !errors.Is(err, bad) || !slices.Equal(out, []inbox.Outcome{
		inbox.Applied, inbox.Undecided, inbox.Undecided,
		inbox.Undecided,
	}) {
		t.Errorf("%v, %v", out, err)
	}
	if got := fatalText(t, func(tb testing.TB) {
		_, _ = outboxtest.Deliver(t.Context(), tb, nil, events...)
	}); got == "" {
		t.Error("a nil handler was accepted")
	}
	if got := fatalText(t, func(tb testing.TB) {
		_, _ = outboxtest.Deliver(t.Context(), tb, h, event.Event{})
	}); !strings.Contains(got, "topic") {
		t.Errorf("an event without a topic: %q", got)
	}
}

// halting is a handler that fails at an event.
type halting struct {
	inbox.HandlerFunc // nil: only Handle is implemented

	at  uuid.UUID
	err error
}

func (h halting) Handle(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
	out := make([]inbox.Outcome, len(events))
	for i, e := range events {
		if e.ID == h.at {
			return out, h.err
		}
		out[i] = inbox.Applied
	}
	return out, nil
}

// TestRedeliver: a handler with an inbox applies once, although the effect ran more often.
func TestRedeliver(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]bool{"each": false, "batch": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := effects(t)
			var runs atomic.Int32
			events := newEvents("a", 3)
			r, err := outboxtest.Redeliver(t.Context(), t, db.Pool, func(db *pgxpool.Pool) (inbox.Handler, error) {
				in, err := inbox.New(db, "test", config())
				if err != nil {
					return nil, err
				}
				if batch {
					return in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
						runs.Add(1)
						for _, e := range events {
							if err := write(ctx, tx, e); err != nil {
								return err
							}
						}
						return nil
					}), nil
				}
				return in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
					runs.Add(1)
					return write(ctx, tx, e)
				}), nil
			}, events...)
			if err != nil {
				t.Fatal(err)
			}
			for i := range events {
				if r.Count(i, inbox.Applied) != 1 || r.Count(i, inbox.Duplicate) != 3 ||
					r.Count(i, inbox.Undecided) != 1 {
					t.Errorf("event %d: %+v", i, r)
				}
			}
			if count(r.Crashed, inbox.Undecided) != 3 || count(r.Batched, inbox.Duplicate) != 3 ||
				count(r.Single, inbox.Duplicate) != 3 {
				t.Errorf("%+v", r)
			}
			if n := pgtest.One[int](t, db, "select count(*) from effect"); n != 3 {
				t.Errorf("%d effects, want 3", n)
			}
			if want := map[bool]int32{false: 6, true: 2}[batch]; runs.Load() < want {
				t.Errorf("the effect ran %d times, want at least %d: the crash did not happen", runs.Load(), want)
			}
		})
	}
}

func count(outcomes []inbox.Outcome, want inbox.Outcome) (n int) {
	for _, o := range outcomes {
		if o == want {
			n++
		}
	}
	return n
}

// TestRedeliverFindsDuplicates: a handler without an inbox applies several times.
func TestRedeliverFindsDuplicates(t *testing.T) {
	t.Parallel()
	db := effects(t)
	events := newEvents("a", 2)
	r, err := outboxtest.Redeliver(t.Context(), t, db.Pool, func(db *pgxpool.Pool) (inbox.Handler, error) {
		return naive{db: db}, nil
	}, events...)
	if err != nil {
		t.Fatal(err)
	}
	if r.Count(0, inbox.Applied) != 4 || pgtest.One[int](t, db, "select count(*) from effect") != 8 {
		t.Errorf("%+v", r)
	}
	elsewhere := fatalText(t, func(tb testing.TB) {
		_, _ = outboxtest.Redeliver(t.Context(), tb, db.Pool, func(*pgxpool.Pool) (inbox.Handler, error) {
			return naive{db: db.Pool}, nil
		}, events...)
	})
	if !strings.Contains(elsewhere, "the pool that it is given") {
		t.Errorf("a handler on another pool: %q", elsewhere)
	}
	refused := fatalText(t, func(tb testing.TB) {
		_, _ = outboxtest.Redeliver(t.Context(), tb, db.Pool, func(*pgxpool.Pool) (inbox.Handler, error) {
			return nil,
				errors.New("no")
		}, events...)
	})
	if !strings.Contains(refused, "no handler") {
		t.Errorf("a build that fails: %q", refused)
	}
}

type naive struct {
	inbox.HandlerFunc // nil: only Handle is implemented
	db                *pgxpool.Pool
}

func (h naive) Handle(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	out := make([]inbox.Outcome, len(events))
	err := pgx.BeginFunc(ctx, h.db, func(tx pgx.Tx) error {
		for _, e := range events {
			if err := write(ctx, tx, e); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range out {
		if err == nil {
			out[i] = inbox.Applied
		}
	}
	return out, err
}
