package inbox_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// TestP9_5_WaitingEventIsRetriedNow: an effect failed and would run again in an hour. An operator sees the event and
// has it run at once.
func TestP9_5_WaitingEventIsRetriedNow(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(error) error{
		"failed":    func(err error) error { return err },
		"retryable": outcome.Retryable,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var mended atomic.Bool
			waits := make(chan time.Duration, 100)
			in := newInbox(t, w.Pool, "ledger", inbox.Config{
				Window: 24 * time.Hour, AllowShortWindow: true, DaysAhead: 1, Backoff: time.Hour, MaxAttempts: 3,
				Observer: inbox.Observer{Retried: func(i inbox.RetriedInfo) { waits <- i.Wait }},
			})
			h, events := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				if !mended.Load() {
					return fail(errors.New("the card network is away"))
				}
				return write(ctx, tx, e)
			}), some(1)
			assigned(h)
			decided := make(chan []inbox.Outcome, 1)
			go func() {
				out, _ := h.Handle(t.Context(), events)
				decided <- out
			}()
			for wait := time.Duration(0); wait < time.Minute; {
				wait = <-waits
			}
			pgtest.AwaitSQL(t, w.DB, "select trying_at is not null from inbox_progress")
			list, err := w.operator().Consumers(t.Context())
			if err != nil || len(list) != 1 || len(list[0].Partitions) != 1 {
				t.Fatalf("%+v, %v", list, err)
			}
			if p := list[0].Partitions[0]; p.TryingAt == nil || p.HaltedAt != nil ||
				!strings.HasPrefix(p.Trying, "event "+events[0].ID.String()+" at offset ") ||
				!strings.Contains(p.Trying, ", attempt 1: the card network is away") {
				t.Errorf("the operator sees %+v", p)
			}
			mended.Store(true)
			if err := w.operator().Resume(t.Context(), "payments", 3, "it is back"); err != nil {
				t.Fatal(err)
			}
			same(t, "outcomes", <-decided, []inbox.Outcome{inbox.Applied})
			if pgtest.One[bool](t, w.DB, "select bool_or(trying_at is not null) from inbox_progress") {
				t.Error("decided, and still recorded as waiting")
			}
			if err := w.operator().Resume(t.Context(), "payments", 3, "again"); !errors.Is(err, operator.ErrNotHalted) {
				t.Errorf("nothing waits: %v", err)
			}
		})
	}
}

// TestP9_5_PauseIsRemovedAfterSuccess: an event is no longer recorded as waiting once an attempt succeeds, or once
// another process has begun its partition.
func TestP9_5_PauseIsRemovedAfterSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	noted := func() bool {
		return pgtest.One[bool](t, w.DB, "select coalesce(bool_or(trying_at is not null), false) from inbox_progress")
	}
	runs := 0
	h, events := newInbox(t, w.Pool, "ledger", inbox.Config{
		Window: 24 * time.Hour, AllowShortWindow: true, DaysAhead: 1, Backoff: 2600 * time.Millisecond,
	}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		switch runs++; runs {
		case 1:
			return write(ctx, tx, e)
		case 3:
			if !noted() {
				t.Error("the wait was not recorded")
			}
			return write(ctx, tx, e)
		}
		return errors.New("not yet")
	}), some(3)
	assigned(h)
	// This batch writes the progress, so the next one would not write it otherwise.
	same(t, "before", handle(t, h, events[:1]), []inbox.Outcome{inbox.Applied})
	same(t, "outcomes", handle(t, h, events[1:2]), []inbox.Outcome{inbox.Applied})
	if noted() {
		t.Error("decided, and still recorded as waiting")
	}
	w.Exec(t, "update inbox_progress set trying_at = now() - interval '1 hour', updated_at = now() - interval '1 hour'")
	next := w.inbox(inbox.Config{}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if !pgtest.One[bool](t, w.DB, `select coalesce(trying_at < now() - interval '59 min', false)
				and updated_at < now() - interval '59 min' and to_offset > from_offset from inbox_progress`) {
			t.Error("another process begins, and it is forgotten how long the event waits")
		}
		return write(ctx, tx, e)
	})
	assigned(next)
	same(t, "outcomes of another process", handle(t, next, events[2:]), []inbox.Outcome{inbox.Applied})
	if noted() {
		t.Error("another process goes on, and the event is still recorded as waiting")
	}
}

// TestP9_5_WaitingReleaseIsRetriedNow: a released event failed as Retryable and would run again in minutes. An operator
// has it run at once.
func TestP9_5_WaitingReleaseIsRetriedNow(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"of a key": "a", "alone": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, events := newWorld(t), keyed(key)
			handle(t, w.inbox(inbox.Config{}).Each(
				failing(map[uuid.UUID]error{events[0].ID: outcome.Terminal("x", errBad)})), events)
			list, err := w.operator().Parked(t.Context(), admin.ParkedFilter{})
			if err != nil || len(list) != 1 {
				t.Fatalf("%+v, %v", list, err)
			}
			if err := w.operator().Resume(t.Context(), "payments", 3, "too early"); !errors.Is(err,
				operator.ErrNotHalted) {
				t.Errorf("nothing waits: %v", err)
			}
			var mended atomic.Bool
			in := w.inbox(quick(inbox.Config{Backoff: time.Hour}))
			in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				if !mended.Load() {
					return outcome.Retryable(errBad)
				}
				return write(ctx, tx, e)
			})
			if key == "" {
				err = w.operator().ReleaseEvent(t.Context(), list[0].ID, "mended")
			} else {
				_, err = w.operator().ReleaseKey(t.Context(), "", "payments", key, admin.Seen{}, "mended")
			}
			if err != nil {
				t.Fatal(err)
			}
			runs(t, in)
			pgtest.AwaitSQL(t, w.DB, "select waiting_at is not null from inbox_parked")
			mended.Store(true)
			if err := w.operator().Resume(t.Context(), "payments", 3, "it is back"); err != nil {
				t.Fatal("the operator's retry has no effect:", err)
			}
			pgtest.AwaitSQL(t, w.DB, "select not exists (select from inbox_parked)")
			same(t, "effects", w.effects(), ids(events))
		})
	}
}
