package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// counted returns an inbox with a pool of its own, and the count of its COMMITs, which has no other than those of
// releases.
func (w *world) counted(cfg inbox.Config) (in *inbox.Inbox, commits *atomic.Int64) {
	w.t.Helper()
	pool, err := pgxpool.ParseConfig(w.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	commits = new(atomic.Int64)
	pool.ConnConfig.Tracer = statements(func(sql string) {
		if strings.HasSuffix(sql, "commit") {
			commits.Add(1)
		}
	})
	db, err := pgxpool.NewWithConfig(w.t.Context(), pool)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(db.Close)
	cfg.MaintainEvery = -1
	return newInbox(w.t, db, "ledger", small(quick(cfg))), commits
}

// TestP9_6_ReleasedEffectsCannotCommit: an effect of a released list ends its transaction below the inbox. Its event is
// parked again, with those behind it, and none is lost.
func TestP9_6_ReleasedEffectsCannotCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a", "a")
	same(t, "outcomes", handle(t, w.inbox(inbox.Config{}).Each(
		failing(map[uuid.UUID]error{e[0].ID: outcome.Terminal("x", errBad)})), e), repeat(inbox.Parked, 3))
	w.releaseKey("a", 3)
	in, _ := w.counted(inbox.Config{})
	in.Each(func(ctx context.Context, tx pgx.Tx, it event.Event) error {
		if it.ID != e[1].ID {
			return write(ctx, tx, it)
		}
		return pgx.BeginFunc(ctx, tx.Conn(), func(tx pgx.Tx) error { return write(ctx, tx, it) })
	})
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 1 from inbox_parked where code = '"+inbox.CodeTransaction+"'")
	same(t, "effects", w.effects(), ids(e[:1]))
	if n := pgtest.One[int](t, w.DB, "select count(*) from inbox_parked"); n != 2 {
		t.Errorf("%d events are parked, want 2", n)
	}
}

// TestP9_6_ReleasedKeyRunsInBatches: a released key's events take two transactions per hundred events, in their order.
func TestP9_6_ReleasedKeyRunsInBatches(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]func(in *inbox.Inbox, do inbox.BatchEffect) inbox.Handler{
		"each": func(in *inbox.Inbox, do inbox.BatchEffect) inbox.Handler {
			return in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				return do(ctx, tx, []event.Event{e})
			})
		},
		"batch": (*inbox.Inbox).Batch,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			e := keyed(slices.Repeat([]string{"a"}, 300)...)
			same(t, "outcomes", handle(t, w.inbox(inbox.Config{}).Each(
				failing(map[uuid.UUID]error{e[0].ID: outcome.Terminal("x", errBad)})), e),
				repeat(inbox.Parked, len(e)))
			w.releaseKey("a", int64(len(e)))
			var decided atomic.Int64
			in, commits := w.counted(inbox.Config{Observer: inbox.Observer{Released: func(r inbox.ReleasedInfo) {
				if r.Outcome == inbox.Applied {
					decided.Add(1)
				}
			}}})
			handler(in, func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
				for _, e := range events {
					if err := write(ctx, tx, e); err != nil {
						return err
					}
				}
				return nil
			})
			runs(t, in)
			pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
			same(t, "effects", w.effects(), ids(e))
			if n := decided.Load(); n != 300 {
				t.Errorf("Released was called for %d applied events, want 300", n)
			}
			if n := commits.Load(); n > 15 {
				t.Errorf("%d transactions for 300 released events", n)
			}
		})
	}
}

// TestP9_6_ReleasesRunSinglyAfterCrash: a process dies during a batch of released events. The next process counts each
// of them and runs it alone.
func TestP9_6_ReleasesRunSinglyAfterCrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a", "a", "a", "a", "a")
	handle(t, w.inbox(inbox.Config{}).Each(failing(map[uuid.UUID]error{e[0].ID: outcome.Terminal("x", errBad)})), e)
	w.releaseKey("a", 6)
	// The process dies after the effects: its session ends, and it does nothing more.
	dies := make(chan struct{})
	first := w.inbox(quick(inbox.Config{}))
	first.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		if len(events) != 6 {
			t.Errorf("a batch of %d", len(events))
		}
		close(dies)
		<-ctx.Done()
		return errors.New("its process is gone")
	})
	ctx, kill := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- first.Run(ctx) }()
	<-dies
	kill()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	var sizes []int
	in := w.inbox(quick(inbox.Config{}))
	in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		sizes = append(sizes, len(events))
		if n := pgtest.One[int](t, w.DB, "select release_attempts from inbox_parked where message_id = $1",
			events[0].ID.String()); n != 1 {
			t.Errorf("event %d has %d counted runs, want 1", len(sizes), n)
		}
		return write(ctx, tx, events[0])
	})
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
	same(t, "batches", sizes, []int{1, 1, 1, 1, 1, 1})
	same(t, "effects", w.effects(), ids(e))
}

// TestP9_6_ReleasedEventsAreSkippedOrFail: in a batch of released events the effect skips one, before or after it
// wrote, and fails for another. The skipped event leaves no effect; only the failed one and the events after it stay
// parked.
func TestP9_6_ReleasedEventsAreSkippedOrFail(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]func(in *inbox.Inbox, skipped, bad uuid.UUID) inbox.Handler{
		"each, early": func(in *inbox.Inbox, skipped, bad uuid.UUID) inbox.Handler {
			return in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				switch e.ID {
				case skipped:
					return inbox.Skip
				case bad:
					return outcome.Terminal("y", errBad)
				}
				return write(ctx, tx, e)
			})
		},
		"each, late": func(in *inbox.Inbox, skipped, bad uuid.UUID) inbox.Handler {
			return in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				err := write(ctx, tx, e)
				switch e.ID {
				case skipped:
					return inbox.Skip
				case bad:
					return outcome.Terminal("y", errBad)
				}
				return err
			})
		},
		"batch": func(in *inbox.Inbox, skipped, bad uuid.UUID) inbox.Handler {
			return in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
				var said error
				for _, e := range events {
					switch e.ID {
					case skipped:
						said = errors.Join(said, inbox.Of(e, inbox.Skip))
					case bad:
						return inbox.Of(e, outcome.Terminal("y", errBad))
					}
					if err := write(ctx, tx, e); err != nil {
						return err
					}
				}
				return said
			})
		},
	} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, one fails %v", name, fails), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				e := keyed("a", "a", "a", "a", "a")
				handle(t, w.inbox(inbox.Config{}).Each(
					failing(map[uuid.UUID]error{e[0].ID: outcome.Terminal("x", errBad)})), e)
				told := make(chan inbox.Outcome, 10)
				in, commits := w.counted(inbox.Config{
					Observer: inbox.Observer{Released: func(r inbox.ReleasedInfo) { told <- r.Outcome }},
				})
				bad := uuid.Nil
				outcomes := []inbox.Outcome{inbox.Applied, inbox.Skipped, inbox.Applied, inbox.Applied, inbox.Applied}
				effects, parked := []uuid.UUID{e[0].ID, e[2].ID, e[3].ID, e[4].ID}, []string(nil)
				if fails {
					bad = e[3].ID
					outcomes, effects = append(outcomes[:3], inbox.Parked), effects[:2]
					parked = []string{"failed y " + bad.String(), "behind  " + e[4].ID.String()}
				}
				handler(in, e[1].ID, bad)
				w.releaseKey("a", 5)
				runs(t, in)
				for i, want := range outcomes {
					if o := <-told; o != want {
						t.Errorf("event %d is %v, want %v", i, o, want)
					}
				}
				pgtest.AwaitSQL(t, w.DB, "select not exists (select from inbox_parked_key where state = 'releasing')")
				same(t, "parked", w.parked(), parked)
				same(t, "effects", w.effects(), effects)
				if days, _ := w.rows(); days != len(outcomes)-len(parked)/2 {
					t.Errorf("%d ids are recorded", days)
				}
				if n := commits.Load(); !fails && n > 7 { // one at a time takes at least eleven
					t.Errorf("%d transactions: they ran one at a time", n)
				}
			})
		}
	}
}
