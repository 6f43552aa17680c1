package inbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// TestP9_4_EffectLosesSession: an effect loses its session in each run, while the database answers other sessions. The
// first loss may be a failover or a pooler's restart and costs no attempt; the later ones do. The events before and
// after it are applied.
func TestP9_4_EffectLosesSession(t *testing.T) {
	t.Parallel()
	const attempts = 3
	for name, lose := range map[string]func(w *world, ctx context.Context, tx pgx.Tx) error{
		"ends its backend": func(_ *world, ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
			return outcome.Terminal("whatever", err)
		},
		"ignores the error": func(_ *world, ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
			return nil
		},
		"says nothing for too long": func(w *world, ctx context.Context, tx pgx.Tx) error {
			var pid int32
			if err := tx.QueryRow(ctx, "select pg_backend_pid(), set_config('idle_in_transaction_session_timeout', "+
				"'20ms', true)").Scan(&pid, nil); err != nil {
				return err
			}
			pgtest.AwaitSQL(w.t, w.DB, "select not exists (select from pg_stat_activity where pid = $1)", pid)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, r, events := newWorld(t), &retries{}, keyed("a", "b", "c")
			in := w.inbox(quick(inbox.Config{MaxAttempts: attempts, Observer: r.observer()}))
			ran := make(chan struct{}, 1000)
			enough, stop := context.WithCancel(t.Context())
			defer stop()
			do := func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				if e.ID != events[1].ID {
					return write(ctx, tx, e)
				}
				if ran <- struct{}{}; len(ran) > 3*attempts {
					stop()
				}
				return lose(w, ctx, tx)
			}
			h := in.Each(do)
			out, err := h.Handle(enough, events)
			if err != nil {
				t.Fatalf("%d runs and no end: %v, retries %v", len(ran), err, r.list)
			}
			same(t, "outcomes", out, []inbox.Outcome{inbox.Applied, inbox.Parked, inbox.Applied})
			if got := pgtest.One[string](t, w.DB,
				"select code || ' ' || attempts from inbox_parked"); got != "failed 3" {
				t.Errorf("parked as %s", got)
			}
			same(t, "effects", w.effects(), ids([]event.Event{events[0], events[2]}))
			// A release parks it again.
			w.releaseKey("b", 1)
			runs(t, in)
			pgtest.AwaitSQL(t, w.DB, "select count(*) = 1 from inbox_parked_key where state = 'parked'")
		})
	}
}
