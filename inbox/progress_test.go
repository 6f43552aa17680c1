package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// progress returns the row of the tests' partition: from_offset, to_offset and attempts.
func (w *world) progress() (p [3]int64) {
	w.t.Helper()
	err := w.Pool.QueryRow(w.t.Context(), "select from_offset, to_offset, attempts from inbox_progress").Scan(&p[0],
		&p[1], &p[2])
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// unfinished writes the range of a process that was killed after that many counted runs of the event at from.
func (w *world) unfinished(from, to, attempts int) {
	w.t.Helper()
	w.Exec(w.t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, attempts)
		values ('ledger', 'payments', 3, $1, $2, $3)`, from, to, attempts)
}

// assigned calls a handler's Assigned, as a consumer does.
func assigned(h inbox.Handler) {
	h.(interface {
		Assigned(topic string, partition int32)
	}).Assigned("payments", 3)
}

// TestP9_5_RangeIsWrittenFirst: after an assignment the range is written before each batch until one had a new event,
// so that a killed process leaves it. Later batches write no range.
func TestP9_5_RangeIsWrittenFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := some(30)
	var during [3]int64
	h := w.inbox(inbox.Config{}).Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		during = w.progress() // read on another connection, so it is committed
		return writeAll(ctx, tx, events)
	})
	assigned(h)
	handle(t, h, e[:10])
	if during != [3]int64{0, 10, 0} || w.progress() != [3]int64{10, 10, 0} {
		t.Errorf("during the first batch %v, after it %v", during, w.progress())
	}
	inbox.KeepProgressFresh(h)
	handle(t, h, e[10:20])
	if during != [3]int64{10, 10, 0} || w.progress() != [3]int64{10, 10, 0} {
		t.Errorf("the second batch wrote: %v, %v", during, w.progress())
	}
	// The offset was not committed, so after an assignment the same events come again. A batch of duplicates does not
	// end the writing.
	assigned(h)
	handle(t, h, e[:10])
	handle(t, h, e[10:20])
	if w.progress() != [3]int64{20, 20, 0} {
		t.Errorf("repetitions: %v", w.progress())
	}
	handle(t, h, e[20:])
	if during != [3]int64{20, 30, 0} {
		t.Errorf("after repetitions: %v", during)
	}
}

// TestP9_5_UnfinishedRange: the events of an unfinished range run one at a time, each counted before its run and
// committed by itself. The events before and after it run in batches.
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
		t.Errorf("progress at the end %v", w.progress())
	}
}

// TestP9_5_Spent: an event with CrashAttempts counted runs is parked without another run. With Halt its partition halts
// until an operator resumes it, which resets the count.
func TestP9_5_Spent(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]inbox.FailurePolicy{"park": inbox.ParkKey, "halt": inbox.Halt} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.unfinished(0, 3, 2)
			e := keyed("a", "b", "a")
			cfg := inbox.Config{CrashAttempts: 2, OnFailure: policy}
			h := w.inbox(cfg).Each(write)
			out, err := h.Handle(t.Context(), e)
			if policy == inbox.ParkKey {
				same(t, "outcomes", out, []inbox.Outcome{inbox.Parked, inbox.Applied, inbox.Parked})
				same(t, "parked", w.parked(), []string{"failed killed " + e[0].ID.String(), "behind  " +
					e[2].ID.String()})
				return
			}
			for range 2 { // a restart does not run the event
				halted(t, err, e[0].ID)
				same(t, "effects", w.effects(), []uuid.UUID{})
				h = w.inbox(cfg).Each(write)
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
				t.Error("resumed before the operator's command")
			}
			if err := w.operator().Resume(t.Context(), "payments", 3, "more memory"); err != nil {
				t.Fatal(err)
			}
			if !resumed() {
				t.Error("not resumed after the operator's command")
			}
			same(t, "outcomes", handle(t, h, e), repeat(inbox.Applied, 3))
		})
	}
}

// TestP9_5_CountIsTakenBack: a process that ends a counted run undecided and lives on decrements the count again, so
// that rolling deploys park no harmless event. A failed effect costs no counted run either.
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

// TestP9_5_DatabaseOutageIsNotCounted: a connection that is lost in a counted run costs no counted run.
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

// TestP9_5_CountedRunIsAlone: a counted run waits for the process's running batches before it counts, and no other
// batch runs during it.
func TestP9_5_CountedRunIsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unfinished(0, 1, 0)
	gate := inbox.NewGate()
	inside, leave := make(chan struct{}), make(chan struct{})
	running := 0 // guarded by the gate alone, so that the race detector reports a gap
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
		t.Errorf("%d runs counted while another batch runs", n)
	}
	close(leave)
	<-alone
	wg.Wait()
	handle(t, plain, second)
	if len(w.effects()) != 3 || running != 3 {
		t.Errorf("%d effects", len(w.effects()))
	}
}

// TestP9_6_KillingReleaseIsParkedAgain: a released event is counted before each run too, and parked again after
// CrashAttempts.
func TestP9_6_KillingReleaseIsParkedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a")
	in := w.inbox(quick(inbox.Config{CrashAttempts: 2}))
	h := in.Each(failing(map[uuid.UUID]error{e[0].ID: outcome.Terminal("x", errBad)}))
	handle(t, h, e)
	w.releaseKey("a", 2)
	// As if two processes had died of it.
	w.Exec(t, "update inbox_parked set release_attempts = 2 where message_id = $1", e[0].ID.String())
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB, "select state = 'parked' and code = 'killed' from inbox_parked_key")
	same(t, "parked", w.parked(), []string{"failed killed " + e[0].ID.String(), "behind  " + e[1].ID.String()})
	if n := pgtest.One[int](t, w.DB, "select max(release_attempts) from inbox_parked"); n != 0 {
		t.Errorf("its next release begins with %d attempts, want 0", n)
	}
	if len(w.effects()) != 0 {
		t.Error("the effect ran")
	}
}

// TestAccountIsWritten: whatever becomes of events, alone and among others, and whatever is read again after a death,
// the account of a begun partition is that of its progress.
func TestAccountIsWritten(t *testing.T) {
	t.Parallel()
	for name, dedup := range map[string]inbox.Dedup{"by id": inbox.ByID, "by offset": inbox.ByOffset} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			e := some(40)
			for i := range e {
				e[i].Position.Offset = int64(2*i + 7) // each behind a control record
				e[i].Position.Absent = 1
			}
			h := w.inbox(inbox.Config{Dedup: dedup, MaxAttempts: 1}).Each(func(ctx context.Context, tx pgx.Tx,
				one event.Event,
			) error {
				switch one.Position.Offset % 9 {
				case 0:
					return outcome.Terminal("no", errors.New("it cannot be applied"))
				case 1:
					return inbox.Skip
				}
				return writeAll(ctx, tx, []event.Event{one})
			})
			check := func(next int64) {
				t.Helper()
				if got := pgtest.One[string](t, w.DB,
					"select from_offset || ' from ' || began_offset || ': ' || accounted from inbox_progress"); got !=
					fmt.Sprintf("%d from 6: %d", next, next-6) {
					t.Errorf("the progress is %s, want %d", got, next)
				}
			}
			begin := func() {
				assigned(h)
				if _, err := h.Progress(t.Context(), "payments", 3); err != nil {
					t.Fatal(err)
				}
			}
			begin()
			if err := h.Begin(t.Context(), "payments", 3, 6, inbox.Beginning{Offset: 6, Reason: "a test"}); err != nil {
				t.Fatal(err)
			}
			handle(t, h, e[:10])
			handle(t, h, e[10:20])
			h.Revoked(t.Context(), "payments", 3)
			check(e[19].Position.Offset + 1)
			begin()
			handle(t, h, e[5:25]) // some of them again
			handle(t, h, e[25:])
			h.Revoked(t.Context(), "payments", 3)
			check(e[39].Position.Offset + 1)
			begin() // the group is behind, and the process dies before it is at the progress again
			handle(t, h, e[5:7])
			handle(t, h, e[7:9])
			next := w.progress()[0]
			if next >= e[39].Position.Offset {
				t.Errorf("the progress is %d: it is to be where the events are read again", next)
			}
			check(next)
			begin()
			handle(t, h, e[9:])
			h.Revoked(t.Context(), "payments", 3)
			check(e[39].Position.Offset + 1)
		})
	}
}

// TestP9_3_LostProgressDecidesNothing: the row of a partition went back, or is gone, under a process that wrote it: a
// backup was restored without another timeline, or somebody deleted rows. The database may lack effects whose offsets
// are committed, so the next transaction that looks at the row decides nothing, and leaves it as it is.
func TestP9_3_LostProgressDecidesNothing(t *testing.T) {
	t.Parallel()
	lose := map[string]string{
		"back": "update inbox_progress set from_offset = 5, to_offset = 5", "gone": "delete from inbox_progress",
	}
	// What is next: a batch that writes its range, one that only advances the progress, or a counted run.
	for _, next := range []string{"range", "pass", "count", "idle"} {
		for name, sql := range lose {
			t.Run(next+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				e := some(30)
				h := w.inbox(inbox.Config{}).Each(write)
				if next == "count" {
					w.unfinished(0, 30, 0)
				}
				assigned(h)
				handle(t, h, e[:10])
				if next == "range" {
					assigned(h)
					handle(t, h, e[:10]) // repeats
				}
				if next == "idle" {
					inbox.KeepProgressFresh(h)
					handle(t, h, e[10:20])
				}
				w.Exec(t, sql)
				if next == "idle" {
					h.Revoked(t.Context(), "payments", 3)
				} else {
					if next == "pass" {
						inbox.ProgressIsDue(h)
					}
					out, err := h.Handle(t.Context(), e[10:20])
					if _, ok := errors.AsType[*inbox.DatabaseChangedError](err); !ok {
						t.Errorf("outcomes %v, error %v, want a DatabaseChangedError", out, err)
					}
					same(t, "effects", w.effects(), ids(e[:10]))
				}
				if n := pgtest.One[int](t, w.DB, "select coalesce(max(from_offset), -1) from inbox_progress"); n > 5 {
					t.Errorf("the progress advanced to %d", n)
				}
			})
		}
	}
}

// TestP9_3_LostBeforeTheFirstEvent: a backup is restored while a partition is quiet since its assignment. Its first
// event is not decided past the effects that are lost.
func TestP9_3_LostBeforeTheFirstEvent(t *testing.T) {
	t.Parallel()
	for name, dedup := range map[string]inbox.Dedup{"by id": inbox.ByID, "by offset": inbox.ByOffset} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			e := some(40)
			in := w.inbox(inbox.Config{Dedup: dedup})
			h := in.Each(write)
			begin := func(want int64) {
				t.Helper()
				if next := begun(t, h, uuid.Nil); next != want {
					t.Fatalf("it begins at %d, want %d", next, want)
				}
			}
			begin(0)
			handle(t, h, e[:10])
			h.Revoked(t.Context(), "payments", 3)
			restore := w.backup()
			begin(10)
			handle(t, h, e[10:20])
			h.Revoked(t.Context(), "payments", 3)
			begin(20)
			h.Absent("payments", 3, 20, 25)
			w.Exec(t, restore)
			if err := inbox.WriteIdleProgress(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			if now := w.progress()[0]; now != 10 {
				t.Errorf("the progress is %d, want 10", now)
			}
			changed(t, h, e[25:])
			same(t, "effects", w.effects(), ids(e[:10]))
			begin(10)
			same(t, "read again", handle(t, h, e[10:]), repeat(inbox.Applied, 30))
			h.Revoked(t.Context(), "payments", 3)
			begin(40)
		})
	}
}

// TestSkippedAheadIsNotLost: an operator advances the progress forwards, past events that a running process still has.
func TestSkippedAheadIsNotLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := some(30)
	h := w.inbox(inbox.Config{}).Each(write)
	assigned(h)
	handle(t, h, e[:10])
	w.Exec(t, "update inbox_progress set from_offset = 100, to_offset = 100")
	for i := 10; i < 30; i += 10 {
		inbox.ProgressIsDue(h)
		same(t, "outcomes", handle(t, h, e[i:i+10]), repeat(inbox.Applied, 10))
	}
	if now := w.progress(); now != [3]int64{100, 100, 0} {
		t.Errorf("the progress is %v", now)
	}
}
