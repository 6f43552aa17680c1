package inbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// TestP9_5_HostDiesInTransaction: a worker's host dies during a transaction, and a proxy keeps its connection to the
// server open. The partition's next owner waits for the locked rows only until the server's time-out ends that session.
func TestP9_5_HostDiesInTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy := pgtest.NewProxy(t, w.URL)
	dead := newInbox(t, pool(t, proxy.URL()), "ledger", small(inbox.Config{EffectTimeout: time.Second}))
	if err := dead.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	events, inside, gone := some(3), make(chan struct{}), make(chan struct{})
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		_, _ = dead.Each(func(ctx context.Context, _ pgx.Tx, _ event.Event) error {
			proxy.Pause()
			close(inside)
			<-gone
			return ctx.Err() // or the next event's effect would pause it again
		}).Handle(ctx, events)
	}()
	defer func() { cancel(); proxy.Resume(); close(gone); <-ended }()
	<-inside
	next, stop := context.WithTimeout(t.Context(), 80*time.Second)
	defer stop()
	out, err := w.inbox(inbox.Config{}).Each(write).Handle(next, events)
	if err != nil {
		t.Fatalf("its successor still waits for its rows: %v", err)
	}
	same(t, "outcomes", out, repeat(inbox.Applied, 3))
	same(t, "effects", w.effects(), ids(events))
}

// TestP9_5_TransactionSetsKeepalives: keepalives and time-outs for silent clients are set for the transaction only. A
// time-out that the role or the database sets is kept.
func TestP9_5_TransactionSetsKeepalives(t *testing.T) {
	t.Parallel()
	const settings = `select concat_ws(' ', current_setting('idle_in_transaction_session_timeout'),
			current_setting('tcp_keepalives_idle'),
		current_setting('tcp_keepalives_interval'), current_setting('tcp_keepalives_count'))`
	for own, idle := range map[string]string{"0": "450s", "77s": "77s"} {
		w := newWorld(t)
		db := pool(t, w.URL+"&pool_max_conns=1&idle_in_transaction_session_timeout="+own)
		var within, before, after string
		h := newInbox(t, db, "ledger", small(inbox.Config{})).Each(func(ctx context.Context, tx pgx.Tx,
			_ event.Event,
		) error {
			return tx.QueryRow(ctx, settings).Scan(&within)
		})
		for _, read := range []*string{&before, &after} {
			if err := db.QueryRow(t.Context(), settings).Scan(read); err != nil {
				t.Fatal(err)
			}
			handle(t, h, some(1))
		}
		if want := idle + " 10 5 3"; within != want {
			t.Errorf("in a transaction, where the role has %s: %s, want %s", own, within, want)
		}
		if before != after || strings.HasSuffix(after, " 10 5 3") {
			t.Errorf("before %s, after %s", before, after)
		}
	}
}

// TestP9_4_HangingEffect: an effect that exceeds its deadline fails like any other, and the events before and after it
// are applied.
func TestP9_4_HangingEffect(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]func(in *inbox.Inbox, do inbox.Effect) inbox.Handler{
		"each": (*inbox.Inbox).Each,
		"batch": func(in *inbox.Inbox, do inbox.Effect) inbox.Handler {
			return in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
				for _, e := range events {
					if err := do(ctx, tx, e); err != nil {
						return err
					}
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, events := newWorld(t), keyed("a", "b", "c")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			in := w.inbox(inbox.Config{MaxAttempts: 2, EffectTimeout: 300 * time.Millisecond})
			h := handler(in, func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				if e.ID == events[1].ID {
					<-ctx.Done()
					return ctx.Err()
				}
				return outcome.Retryable(write(ctx, tx, e)) // a slow machine may exceed the deadline here, too
			})
			out, err := h.Handle(ctx, events)
			if err != nil {
				t.Fatalf("Handle does not return: %v", err)
			}
			same(t, "outcomes", out, []inbox.Outcome{inbox.Applied, inbox.Parked, inbox.Applied})
			if reason := pgtest.One[string](t, w.DB, "select reason from inbox_parked"); !strings.Contains(reason,
				"EffectTimeout") {
				t.Errorf("parked for %q", reason)
			}
		})
	}
}

// TestSlowEffectsRunFewer: events that take too long together run in smaller transactions from then on, and none of
// them is blamed.
func TestSlowEffectsRunFewer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var r retries
	in := w.inbox(inbox.Config{
		EffectTimeout: 200 * time.Millisecond, MaxAttempts: 1000, Backoff: time.Millisecond, Observer: r.observer(),
	})
	h := in.Each(func(ctx context.Context, _ pgx.Tx, _ event.Event) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond): // what the effect does takes a while
			return nil
		}
	})
	const batches, size = 5, 64
	for range batches {
		same(t, "outcomes", handle(t, h, some(size)), repeat(inbox.Applied, size))
	}
	// 64, 32, 16, and the sizes that are tried again after 16 transactions. Each batch would split three times.
	if n := r.count("split"); n == 0 || n > 2*batches {
		t.Errorf("%d transactions were too long", n)
	}
}
