package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// ordered checks that the effects of each key are those of its events, once and in the order of the log.
func ordered(t *testing.T, w *world, log []event.Event) {
	t.Helper()
	key, got, want := map[uuid.UUID]string{}, map[string][]uuid.UUID{}, map[string][]uuid.UUID{}
	for _, e := range log {
		key[e.ID] = e.Key
		want[e.Key] = append(want[e.Key], e.ID)
	}
	for _, id := range w.effects() {
		got[key[id]] = append(got[key[id]], id)
	}
	for k := range want {
		same(t, "key "+k, got[k], want[k])
	}
}

// TestP9_10_KeysRunAtTheSameTime: the effects of three keys are in their transactions at once, the batch's range is
// written before, and the progress moves after all of them.
func TestP9_10_KeysRunAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := keyed("a", "b", "a", "c", "a", "b")
	var once [3]sync.Once
	var here sync.WaitGroup
	here.Add(3)
	h := w.inbox(inbox.Config{Parallel: 3}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		once[e.Key[0]-'a'].Do(here.Done)
		here.Wait() // for ever, if one of them waits for another
		if e.Position.Offset == 0 && w.progress() != [3]int64{0, 6, 0} {
			t.Errorf("meanwhile the progress is %v", w.progress())
		}
		return write(ctx, tx, e)
	})
	assigned(h)
	same(t, "outcomes", handle(t, h, log), repeat(inbox.Applied, 6))
	ordered(t, w, log)
	if p := w.progress(); p != [3]int64{6, 6, 0} {
		t.Errorf("after it the progress is %v", p)
	}
	same(t, "again", handle(t, h, log), repeat(inbox.Duplicate, 6))
}

// TestP9_10_FailureOfAKey: an event that fails for good is parked with its key, and events of other keys do not run
// again for it.
func TestP9_10_FailureOfAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := keyed("a", "b", "a", "c", "a", "b", "c")
	var mu sync.Mutex
	runs := map[int64]int{}
	var handled inbox.HandledInfo
	cfg := inbox.Config{Parallel: 3, Observer: inbox.Observer{Handled: func(i inbox.HandledInfo) {
		mu.Lock()
		defer mu.Unlock()
		handled.Applied, handled.Parked = handled.Applied+i.Applied, handled.Parked+i.Parked
		handled.Duplicate += i.Duplicate
	}}}
	h := w.inbox(cfg).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		mu.Lock()
		runs[e.Position.Offset]++
		mu.Unlock()
		if e.Position.Offset == 2 {
			return outcome.Terminal("bad", errBad)
		}
		return write(ctx, tx, e)
	})
	assigned(h)
	want := repeat(inbox.Applied, 7)
	want[2], want[4] = inbox.Parked, inbox.Parked
	same(t, "outcomes", handle(t, h, log), want)
	for _, at := range []int64{1, 3, 5, 6} {
		if runs[at] != 1 {
			t.Errorf("the effect of offset %d ran %d times", at, runs[at])
		}
	}
	if handled.Applied != 5 || handled.Parked != 2 || handled.Duplicate != 0 {
		t.Errorf("counted %+v", handled)
	}
	if p := w.progress(); p != [3]int64{7, 7, 0} {
		t.Errorf("the progress is %v", p)
	}
}

// TestP9_10_Halt: an event that halts its partition does so once those of other keys are decided. What Handle returns
// has a gap there, and the next call runs none of them again.
func TestP9_10_Halt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	halts := 0
	var said syncBuilder
	in := w.inbox(inbox.Config{
		Parallel: 3, ParkedPerKey: 1, Observer: inbox.Observer{Halted: func(*inbox.HaltError) { halts++ }},
		Logger: slog.New(slog.NewTextHandler(&said, nil)),
	})
	h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		switch e.Key {
		case "a":
			return outcome.Terminal("bad", errBad)
		case "b": // it may take long, so the halt is said before
			pgtest.Await(t, "the log", func() (bool, error) {
				return strings.Contains(said.String(), "its partition"), nil
			})
		}
		return write(ctx, tx, e)
	})
	log := keyed("a", "b", "a", "c", "b", "c")
	assigned(h)
	same(t, "outcomes", handle(t, h, log[:1]), repeat(inbox.Parked, 1))
	if err := in.Maintain(t.Context()); err != nil { // it counts the lists
		t.Fatal(err)
	}
	out, err := h.Handle(t.Context(), log[1:])
	if halt, ok := errors.AsType[*inbox.HaltError](err); !ok || halt.Event.ID != log[2].ID {
		t.Fatalf("%v, want a halt at offset 2", err)
	}
	want := repeat(inbox.Applied, 5)
	want[1] = inbox.Undecided
	same(t, "outcomes", out, want)
	if p := w.progress(); p[0] != 2 {
		t.Errorf("the progress is %v, want 2: offset 2 is not decided", p)
	}
	if n := pgtest.One[int](t, w.DB, "select count(*) from inbox_progress where halted_at is not null"); n != 1 {
		t.Error("the halt is not recorded")
	}
	if halts != 1 {
		t.Errorf("%d halts are told", halts)
	}
	ordered(t, w, []event.Event{log[1], log[3], log[4], log[5]})
}

// TestP9_10_CountedRunsAreAlone: after a process died within a range, its events run one at a time.
func TestP9_10_CountedRunsAreAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := keyed("a", "b", "c", "a", "b", "c", "a", "b")
	w.unfinished(0, 6, 1)
	var mu sync.Mutex
	most, running := 0, 0
	h := w.inbox(inbox.Config{Parallel: 3}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		mu.Lock()
		running++
		if e.Position.Offset < 6 {
			most = max(most, running)
		}
		mu.Unlock()
		err := write(ctx, tx, e)
		mu.Lock()
		running--
		mu.Unlock()
		return err
	})
	assigned(h)
	same(t, "outcomes", handle(t, h, log), repeat(inbox.Applied, 8))
	if most != 1 {
		t.Errorf("%d counted runs at once", most)
	}
	if p := w.progress(); p != [3]int64{8, 8, 0} {
		t.Errorf("the progress is %v", p)
	}
}

// TestP9_10_End: a call that ends decides nothing more, and what it returns is durable.
func TestP9_10_End(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	log := keyed("a", "b", "c", "a")
	var committed sync.WaitGroup
	committed.Add(2)
	cfg := inbox.Config{Parallel: 3, Observer: inbox.Observer{Handled: func(inbox.HandledInfo) { committed.Done() }}}
	h := w.inbox(cfg).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if e.Key == "c" {
			committed.Wait()
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}
		return write(ctx, tx, e)
	})
	assigned(h)
	out, err := h.Handle(ctx, log)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	same(t, "outcomes", out, []inbox.Outcome{inbox.Applied, inbox.Applied, inbox.Undecided, inbox.Applied})
	h.Revoked(t.Context(), "payments", 3)
	if p := w.progress(); p[0] != 2 || p[1] > 2 {
		t.Errorf("the progress is %v, want 2: offset 2 is not decided", p)
	}
}

// TestP9_10_DecidedAgainIsCountedOnce: the connection is lost when the progress moves past the parts. What they decided
// goes through further transactions, and is counted once.
func TestP9_10_DecidedAgainIsCountedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy := pgtest.NewProxy(t, w.URL)
	var counted [2]atomic.Int64
	cfg := small(inbox.Config{Parallel: 3, Observer: inbox.Observer{Handled: func(i inbox.HandledInfo) {
		counted[0].Add(int64(i.Applied))
		counted[1].Add(int64(i.Duplicate))
	}}})
	h := newInbox(t, pgtest.Pool(t, proxy.URL()+"&pool_max_conns=5"), "ledger", cfg).Each(write)
	assigned(h)
	cut := proxy.On(func(sql string) bool { return strings.HasPrefix(sql, "-- inbox: pass\n") }, 0, pgtest.CutBefore)
	same(t, "outcomes", handle(t, h, keyed("a", "b", "c", "a")), repeat(inbox.Applied, 4))
	<-cut.Fired()
	if applied, repeats := counted[0].Load(), counted[1].Load(); applied != 4 || repeats != 0 {
		t.Errorf("%d applied and %d duplicates are told, of 4 events", applied, repeats)
	}
}

// TestP9_10_RejectedBesideAPause: the database rejects the effects of one key. The events of two others wait for their
// next attempts in an hour, which only an operator has them run before.
func TestP9_10_RejectedBesideAPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var runs atomic.Int32
	in := w.inbox(inbox.Config{Parallel: 3, Backoff: time.Hour})
	h, log := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if e.Key == "a" && runs.Add(1) == 1 {
			return outcome.Retryable(errBad)
		} else if e.Key == "a" {
			return write(ctx, tx, e)
		}
		_, err := tx.Exec(ctx, "insert into late select $1", e.ID.String())
		return err
	}), keyed("a", "b", "c")
	log[1].Type, log[2].Type = "Late", "Late"
	assigned(h)
	decided := make(chan []inbox.Outcome, 1)
	go func() {
		out, _ := h.Handle(t.Context(), log)
		decided <- out
	}()
	const waits = "select count(*) = 1 from inbox_progress where trying_at is not null"
	pgtest.AwaitSQL(t, w.DB, waits)
	pgtest.AwaitSQL(t, w.DB, "select halted_code = 'rejected' from inbox_progress")
	if !pgtest.One[bool](t, w.DB, waits) {
		t.Error("the event of a does not wait any more")
	}
	w.Exec(t, "create table late (id text)")
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 1 from late")
	if !pgtest.One[bool](t, w.DB, waits) || runs.Load() != 1 {
		t.Errorf("the event of a ran %d times", runs.Load())
	}
	if err := w.operator().Resume(t.Context(), "payments", 3, "mended"); err != nil {
		t.Fatal(err)
	}
	same(t, "outcomes", <-decided, repeat(inbox.Applied, 3))
}

// panicking is a tracer of pgx that panics at a statement, once it is on.
type panicking struct {
	at string
	on atomic.Bool
}

func (p *panicking) TraceQueryStart(ctx context.Context, _ *pgx.Conn, s pgx.TraceQueryStartData) context.Context {
	if p.on.Load() && strings.Contains(s.SQL, p.at) {
		panic("traced")
	}
	return ctx
}

func (*panicking) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestP9_10_ConflictOfParts: parts that lose a conflict go on with one event each at once. With halves, each step would
// cost each of them a deadlock_timeout.
func TestP9_10_ConflictOfParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := keyed("a", "b", "a", "b", "a", "b", "a", "b", "a", "b")
	var mu sync.Mutex
	sizes := map[int]int{}
	h := w.inbox(inbox.Config{Parallel: 2}).Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		mu.Lock()
		sizes[len(events)]++
		mu.Unlock()
		if len(events) > 1 {
			_, err := tx.Exec(ctx, "do $$ begin raise exception 'deadlock' using errcode = '40P01'; end $$")
			return err
		}
		return writeAll(ctx, tx, events)
	})
	same(t, "outcomes", handle(t, h, log), repeat(inbox.Applied, len(log)))
	ordered(t, w, log)
	if sizes[5] == 0 || sizes[5] > 2 || sizes[1] != len(log) || len(sizes) != 2 {
		t.Errorf("transactions by their number of events: %v", sizes)
	}
}

// TestPanicReachesTheCaller: code of the program that is no effect panics beside the goroutine of Handle. A consumer
// recovers it in that one; elsewhere it would end the process.
func TestPanicReachesTheCaller(t *testing.T) {
	t.Parallel()
	for at, keys := range map[string][]string{"inbox: commit": {"a", "b", "c"}, "savepoint": {"a"}} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.Pool.Config()
			tracer := &panicking{at: at}
			cfg.ConnConfig.Tracer = tracer
			db, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(db.Close)
			h := newInbox(t, db, "ledger", small(inbox.Config{Parallel: 3})).Each(
				func(ctx context.Context, tx pgx.Tx, e event.Event) error {
					tracer.on.Store(true)
					return errors.Join(write(ctx, tx, e), skipIf(at == "savepoint"))
				})
			defer func() {
				if p := recover(); p != "traced" {
					t.Errorf("recovered %v", p)
				}
			}()
			t.Error(h.Handle(t.Context(), keyed(keys...)))
		})
	}
}

// TestP9_10_OnePauseIsRecorded: the events of two keys wait for their next attempts, and the effect of a third runs. An
// operator reads of one that waits, and has both run; then of the one that failed again; then of none.
func TestP9_10_OnePauseIsRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var runs [2]atomic.Int32
	leave := make(chan struct{})
	t.Cleanup(sync.OnceFunc(func() { close(leave) }))
	log := keyed("a", "b", "c")
	var pauses atomic.Int32
	cfg := inbox.Config{Parallel: 3, Backoff: time.Hour, Observer: inbox.Observer{
		Retried: func(inbox.RetriedInfo) { pauses.Add(1) },
	}}
	h := w.inbox(cfg).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		switch i := e.Position.Offset; {
		case i == 2:
			<-leave
		case runs[i].Add(1) <= int32(i)+1: // a fails once, b twice
			return outcome.Retryable(errBad)
		}
		return write(ctx, tx, e)
	})
	assigned(h)
	go func() { _, _ = h.Handle(t.Context(), log) }()
	waits := func(what string) {
		t.Helper()
		pgtest.AwaitSQL(t, w.DB, "select count(*) = 1 from inbox_progress where "+what)
	}
	now := func() {
		t.Helper()
		if err := w.operator().Resume(t.Context(), "payments", 3, "now"); err != nil {
			t.Fatal(err)
		}
	}
	a, b := log[0].ID.String(), log[1].ID.String()
	waits("trying_at is not null and trying_reason ~ '(" + a + "|" + b + ")'")
	pgtest.Await(t, "both to wait", func() (bool, error) { return pauses.Load() == 2, nil })
	now()
	waits("trying_at is not null and trying_reason ~ '" + b + ".*attempt 2'")
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 1 from effect where id = '"+a+"'") // it waited unrecorded, or not
	now()
	waits("trying_at is null and exists (select from effect where id = '" + b + "')")
}

// TestP9_10_PauseEndsWithItsEvent: what waited is decided, and the effect of another key still runs: no operator reads
// that the first one waits.
func TestP9_10_PauseEndsWithItsEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var runs atomic.Int32
	leave := make(chan struct{})
	t.Cleanup(func() { close(leave) })
	// Longer than a pause that is not recorded, whatever the jitter.
	h := w.inbox(inbox.Config{Parallel: 2, Backoff: 3 * time.Second}).Each(func(ctx context.Context, tx pgx.Tx,
		e event.Event,
	) error {
		switch {
		case e.Key == "b":
			<-leave
		case runs.Add(1) == 1:
			return outcome.Retryable(errBad)
		}
		return write(ctx, tx, e)
	})
	assigned(h)
	go func() { _, _ = h.Handle(t.Context(), keyed("a", "b")) }()
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 1 from inbox_progress where trying_at is not null")
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 1 from effect")
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 1 from inbox_progress where trying_at is null")
}

// TestParallelIsRefused: a Parallel that its inbox or its pool cannot keep.
func TestParallelIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for want, cfg := range map[string]inbox.Config{
		"only ids":           {Parallel: 2, Dedup: inbox.ByWatermark},
		"for each partition": {Parallel: int(w.Pool.Config().MaxConns)},
		"use ParkKey":        {Parallel: 2, OnFailure: inbox.Halt},
		"negative":           {Parallel: -1},
	} {
		if _, err := inbox.New(w.Pool, "ledger", cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestP9_10_Random: batches with several keys, with failures, skips and repeats, beside a twin that reads the same log.
// Each event is applied once, and those of a key in the order of the log.
func TestP9_10_Random(t *testing.T) {
	t.Parallel()
	seed := draw.Seed(t)
	draw := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t)
	var keys []string
	for range 300 {
		keys = append(keys, fmt.Sprint(draw.IntN(12)))
	}
	log := keyed(keys...)
	var mu sync.Mutex
	fails, passes := map[uuid.UUID]int{}, map[uuid.UUID]bool{}
	var want []event.Event
	for _, e := range log {
		switch draw.IntN(10) {
		case 0:
			fails[e.ID] = 1 + draw.IntN(4)
		case 1:
			passes[e.ID] = true
			continue
		}
		want = append(want, e)
	}
	effect := func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if err := write(ctx, tx, e); err != nil || passes[e.ID] {
			return errors.Join(err, skipIf(passes[e.ID] && err == nil))
		}
		mu.Lock()
		defer mu.Unlock()
		if fails[e.ID]--; fails[e.ID] >= 0 {
			return errBad
		}
		return nil
	}
	var all sync.WaitGroup
	for range 2 {
		h := w.inbox(inbox.Config{Parallel: 3}).Each(effect)
		assigned(h)
		all.Go(func() {
			for at := 0; at < len(log); at += 30 {
				handleTwin(t, h, log[at:at+30])
			}
		})
	}
	all.Wait()
	ordered(t, w, want)
	if n := len(w.effects()); n != len(want) {
		t.Errorf("%d effects, want %d", n, len(want))
	}
}

func skipIf(skip bool) error {
	if skip {
		return inbox.Skip
	}
	return nil
}
