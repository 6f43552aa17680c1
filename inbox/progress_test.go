package inbox_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// progress is the row of the tests' partition: from, to and attempts.
func (w *world) progress() (p [3]int64) {
	w.t.Helper()
	err := w.Pool.QueryRow(w.t.Context(), "select from_offset, to_offset, attempts from inbox_progress").Scan(&p[0],
		&p[1], &p[2])
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// unfinished is what a process leaves that was killed with that many counted runs of the event at from.
func (w *world) unfinished(from, to, attempts int) {
	w.t.Helper()
	w.Exec(w.t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, attempts)
		values ('ledger', 'payments', 3, $1, $2, $3)`, from, to, attempts)
}

// assigned tells a handler of an assignment, as a consumer does.
func assigned(h inbox.Handler) {
	h.(interface {
		Assigned(topic string, partition int32)
	}).Assigned("payments", 3)
}

// TestP9_5_RangeIsWrittenFirst: before the first batch after an assignment, and until one held something new: what a
// killed process leaves is found. Later batches write nothing.
func TestP9_5_RangeIsWrittenFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := some(30)
	var during [3]int64
	h := w.inbox(inbox.Config{}).Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		during = w.progress() // on another connection: it is committed
		return writeAll(ctx, tx, events)
	})
	assigned(h)
	handle(t, h, e[:10])
	if during != [3]int64{0, 10, 0} || w.progress() != [3]int64{10, 10, 0} {
		t.Errorf("during the first batch %v, behind it %v", during, w.progress())
	}
	handle(t, h, e[10:20])
	if during != [3]int64{10, 10, 0} || w.progress() != [3]int64{10, 10, 0} {
		t.Errorf("the second batch wrote: %v, %v", during, w.progress())
	}
	// The offset was not committed: after an assignment the same events come again, and prove nothing.
	assigned(h)
	handle(t, h, e[:10])
	handle(t, h, e[10:20])
	if w.progress() != [3]int64{20, 20, 0} {
		t.Errorf("repetitions: %v", w.progress())
	}
	handle(t, h, e[20:])
	if during != [3]int64{20, 30, 0} {
		t.Errorf("behind repetitions: %v", during)
	}
}

// TestP9_5_UnfinishedRange: it is run one event at a time, counted before each run and committed each; what lies before
// and behind it is run as ever.
func TestP9_5_UnfinishedRange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := some(12)
	handle(t, newInbox(t, w.Pool, "ledger", small(inbox.Config{})).Batch(writeAll), e[:4])
	w.Exec(t, "delete from inbox_progress")
	w.unfinished(4, 8, 3)
	var sizes []int
	var counts [][3]int64
	h := w.inbox(inbox.Config{}).Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		sizes, counts = append(sizes, len(events)), append(counts, w.progress())
		return writeAll(ctx, tx, events)
	})
	same(t, "outcomes", handle(t, h, e), append(repeat(inbox.Duplicate, 4), repeat(inbox.Applied, 8)...))
	same(t, "runs", sizes, []int{1, 1, 1, 1, 4})
	same(t, "progress", counts, [][3]int64{{4, 8, 4}, {5, 8, 1}, {6, 8, 1}, {7, 8, 1}, {8, 12, 0}})
	same(t, "effects", w.effects(), ids(e))
	if w.progress() != [3]int64{12, 12, 0} {
		t.Errorf("at the end %v", w.progress())
	}
}

// TestP9_5_Spent: counted runs that are spent park the event without running it, and with Halt its partition waits
// until an operator resumes it, which sets the count to zero.
func TestP9_5_Spent(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]inbox.FailurePolicy{"park": inbox.ParkKey, "halt": inbox.Halt} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.unfinished(0, 3, 2)
			e := keyed("a", "b", "a")
			in := w.inbox(inbox.Config{CrashAttempts: 2, OnFailure: policy})
			h := in.Each(write)
			out, err := h.Handle(t.Context(), e)
			if policy == inbox.ParkKey {
				same(t, "outcomes", out, []inbox.Outcome{inbox.Parked, inbox.Applied, inbox.Parked})
				same(t, "parked", w.parked(), []string{"failed killed " + e[0].ID.String(), "behind  " +
					e[2].ID.String()})
				return
			}
			for range 2 { // starting again does not run it again
				halted(t, err, e[0].ID)
				same(t, "effects", w.effects(), []uuid.UUID{})
				h = in.Each(write)
				_, err = h.Handle(t.Context(), e)
			}
			resumed := func() bool {
				ok, err := h.(interface {
					Resumed(context.Context, string, int32) (bool, error)
				}).Resumed(t.Context(), "payments", 3)
				if err != nil {
					t.Fatal(err)
				}
				return ok
			}
			if resumed() {
				t.Error("it is resumed before anybody did")
			}
			if err := w.operator().Resume(t.Context(), "payments", 3, "more memory"); err != nil {
				t.Fatal(err)
			}
			if !resumed() {
				t.Error("it is not resumed")
			}
			same(t, "outcomes", handle(t, h, e), repeat(inbox.Applied, 3))
		})
	}
}

// TestP9_5_CountIsTakenBack: a live process that leaves a counted run undecided takes its count back, so that rolling
// deploys never park an innocent; and a failure that it outlives costs no counted run.
func TestP9_5_CountIsTakenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unfinished(0, 1, 0)
	e := some(1)
	for range 12 { // more often than CrashAttempts
		ctx, cancel := context.WithCancel(t.Context())
		h := w.inbox(inbox.Config{}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			if p := w.progress(); p != [3]int64{0, 1, 1} {
				t.Errorf("during the run %v", p)
			}
			cancel() // the generation ends
			<-ctx.Done()
			return ctx.Err()
		})
		if _, err := h.Handle(ctx, e); err == nil {
			t.Fatal("it was decided")
		}
		if p := w.progress(); p != [3]int64{0, 1, 0} {
			t.Fatalf("after it %v", p)
		}
	}
	fails := 5
	same(t, "outcome", handle(t, w.inbox(inbox.Config{MaxAttempts: 5, CrashAttempts: 2}).Each(
		func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			if fails--; fails > 0 {
				return errBad
			}
			return write(ctx, tx, e)
		}), e), repeat(inbox.Applied, 1))
}

// TestP9_5_DatabaseOutageIsNotCounted: nor is a connection that is lost in a counted run.
func TestP9_5_DatabaseOutageIsNotCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unfinished(0, 1, 0)
	e, losses := some(1), 5
	same(t, "outcome", handle(t, w.inbox(inbox.Config{CrashAttempts: 2}).Each(func(ctx context.Context, tx pgx.Tx,
		e event.Event,
	) error {
		if p := w.progress(); p != [3]int64{0, 1, 1} {
			t.Errorf("during the run %v", p)
		}
		if losses--; losses > 0 {
			_, err := tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
			return err
		}
		return write(ctx, tx, e)
	}), e), repeat(inbox.Applied, 1))
}

// TestP9_5_CountedRunIsAlone: no other batch of the process runs beside it, and it waits for those that do, before it
// counts.
func TestP9_5_CountedRunIsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unfinished(0, 1, 0)
	gate := inbox.NewGate()
	inside, leave := make(chan struct{}), make(chan struct{})
	running := 0 // guarded by the gate itself: the race detector sees when it is not
	plain := w.inbox(inbox.Config{Gate: gate}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		running++
		if e.Position.Partition == 7 {
			close(inside)
			<-leave
		}
		return write(ctx, tx, e)
	})
	first, second := some(1), some(1)
	first[0].Position.Partition, second[0].Position.Partition = 7, 8
	var wg sync.WaitGroup
	wg.Go(func() { handle(t, plain, first) })
	<-inside
	counted := some(1)
	alone := make(chan struct{})
	var said syncBuilder
	// Another inbox of the same process.
	other := newInbox(t, w.Pool, "ledger", small(
		inbox.Config{Gate: gate, Logger: slog.New(slog.NewTextHandler(&said, nil))}))
	wg.Go(func() {
		handle(t, other.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			running++
			close(alone)
			return write(ctx, tx, e)
		}), counted)
	})
	pgtest.Await(t, "the other inbox to find the range", func() (bool, error) {
		return strings.Contains(said.String(), "one at a time"), nil
	})
	select {
	case <-alone:
		t.Error("a counted run began beside another")
	default:
	}
	if n := pgtest.One[int](t, w.DB, "select attempts from inbox_progress where partition = 3"); n != 0 {
		t.Errorf("%d counted while a neighbour runs", n)
	}
	close(leave)
	<-alone
	wg.Wait()
	handle(t, plain, second)
	if len(w.effects()) != 3 || running != 3 {
		t.Errorf("%d effects", len(w.effects()))
	}
}

// TestP9_6_KillingReleaseIsParkedAgain: a release is counted before each run as well.
func TestP9_6_KillingReleaseIsParkedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a")
	in := w.inbox(quick(inbox.Config{CrashAttempts: 2}))
	h := in.Each(failing(map[uuid.UUID]error{e[0].ID: inbox.Terminal("x", errBad)}))
	handle(t, h, e)
	w.releaseKey("a", 2)
	// two processes died of it
	w.Exec(t, "update inbox_parked set release_attempts = 2 where message_id = $1", e[0].ID.String())
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB, "select state = 'parked' and code = 'killed' from inbox_parked_key")
	same(t, "parked", w.parked(), []string{"failed killed " + e[0].ID.String(), "behind  " + e[1].ID.String()})
	if n := pgtest.One[int](t, w.DB, "select max(release_attempts) from inbox_parked"); n != 0 {
		t.Errorf("its next release begins with %d attempts", n)
	}
	if len(w.effects()) != 0 {
		t.Error("it ran")
	}
}
