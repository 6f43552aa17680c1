package outboxtest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// Redelivery has the outcomes of each delivery of the same events, in the order of the events.
type Redelivery struct {
	// Crashed are the outcomes in the process that died before its first COMMIT: Undecided, because it was rolled back.
	Crashed []inbox.Outcome
	// Concurrent are the outcomes in two processes that got the events at the same time: for each event Applied, or
	// another outcome of the effect, in one of them and Duplicate in the other.
	Concurrent [2][]inbox.Outcome
	// Batched and Single are the outcomes in a later process, which got the events in a batch and then one by one.
	Batched, Single []inbox.Outcome
}

// Count returns how often event i had the outcome o. A handler that deduplicates has Count(i, inbox.Applied) == 1.
func (r Redelivery) Count(i int, o inbox.Outcome) (n int) {
	for _, outcomes := range [][]inbox.Outcome{r.Crashed, r.Concurrent[0], r.Concurrent[1], r.Batched, r.Single} {
		if outcomes[i] == o {
			n++
		}
	}
	return n
}

// Redeliver simulates the ways in which events are delivered more than once: to a process that dies before its first
// COMMIT, to two processes at once, and to a later process, in a batch and one by one. See [Deliver] for a delivery.
//
// build makes the handler of a simulated process, and must use the given pool, which is made from the configuration of
// db and closed at the end: otherwise the crash does not happen, which fails the test. An error of build fails it too.
// The returned error is the first of a handler other than the crashed one.
//
// The test checks the effect itself: its rows must be there once. The effect runs at least twice, so actions outside of
// the transaction are repeated.
func Redeliver(ctx context.Context, t testing.TB, db *pgxpool.Pool, build func(db *pgxpool.Pool) (inbox.Handler, error),
	events ...event.Event,
) (Redelivery, error) {
	t.Helper()
	read := asConsumed(t, events)
	var r Redelivery
	crashCtx, die := context.WithCancel(ctx)
	defer die()
	c := &crash{die: die}
	h, end := process(ctx, t, db, build, c)
	c.armed.Store(true)
	r.Crashed, _ = deliver(crashCtx, t, h, read)
	end()
	if !c.dead.Load() && slices.Contains(r.Crashed, inbox.Applied) {
		t.Fatal("outboxtest: Redeliver: the handler did not commit on its pool: build must use the pool that it " +
			"is given")
	}

	errs := make([]error, 2, 3+len(read))
	var both sync.WaitGroup
	var ends [2]func()
	for n := range r.Concurrent {
		var h inbox.Handler
		h, ends[n] = process(ctx, t, db, build, nil)
		both.Go(func() { r.Concurrent[n], errs[n] = deliver(ctx, t, h, read) })
	}
	both.Wait()
	ends[0]()
	ends[1]()

	h, end = process(ctx, t, db, build, nil)
	defer end()
	var err error
	if r.Batched, err = deliver(ctx, t, h, read); err != nil {
		errs = append(errs, fmt.Errorf("the later batch: %w", err))
	}
	for i := range read {
		out, err := deliver(ctx, t, h, read[i:i+1])
		r.Single, errs = append(r.Single, out[0]), append(errs, err)
	}
	return r, cmp.Or(errs...)
}

// process makes the pool and the handler of a simulated process, and prepares the handler as a consumer does: the inbox
// registers and creates its partitions in separate transactions. c is nil for a process that does not crash.
func process(ctx context.Context, t testing.TB, db *pgxpool.Pool, build func(*pgxpool.Pool) (inbox.Handler, error),
	c *crash,
) (inbox.Handler, func()) {
	t.Helper()
	if db == nil || build == nil {
		t.Fatal("outboxtest: Redeliver needs a pool, and a function that makes a handler on one")
	}
	cfg := db.Config()
	cfg.MinConns, cfg.MinIdleConns = 0, 0
	if c != nil {
		c.install(cfg)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatalf("outboxtest: %v", err)
	}
	h, err := build(pool)
	if err != nil || h == nil {
		pool.Close()
		t.Fatalf("outboxtest: build made no handler: %v", err)
	}
	if err := h.Prepare(ctx, ""); err != nil {
		pool.Close()
		t.Fatalf("outboxtest: preparing the handler: %v", err)
	}
	return h, pool.Close
}
