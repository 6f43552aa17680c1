package inbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestStatementsArePlannedOnce: the statements of a transaction with an event, alone or in a batch, are not planned
// again for each event.
func TestStatementsArePlannedOnce(t *testing.T) {
	t.Parallel()
	const n = 40
	t.Run("ids", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		h := w.inbox(inbox.Config{}).Each(asksIn(t, n-1))
		all := some(n)
		for i := range all {
			same(t, "one", handle(t, h, all[i:i+1]), []inbox.Outcome{inbox.Applied})
		}
	})
	t.Run("batches", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		h := w.inbox(inbox.Config{}).Each(asksIn(t, 2*n-1))
		for i := 0; i < 2*n; i += 2 {
			handle(t, h, stretch(i, 2))
		}
	})
	t.Run("the caller's transaction", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		in, do := w.inbox(inbox.Config{}), asksIn(t, n-1)
		for _, e := range some(n) {
			if err := pgx.BeginFunc(t.Context(), w.Pool, func(tx pgx.Tx) error {
				_, err := in.ProcessTx(t.Context(), tx, e, do)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// stretch returns n events from an offset on.
func stretch(from, n int) []event.Event {
	events := some(n)
	for i := range events {
		events[i].Position.Offset = int64(from + i)
	}
	return events
}

// asksIn returns an effect that, at an offset, asks which statements its session plans again.
func asksIn(t *testing.T, offset int64) inbox.Effect {
	asked := false
	t.Cleanup(func() {
		if !asked {
			t.Error("the effect that asks did not run")
		}
	})
	return func(_ context.Context, tx pgx.Tx, e event.Event) error {
		if e.Position.Offset == offset {
			pgtest.PlannedOnce(t, tx)
			asked = true
		}
		return nil
	}
}
