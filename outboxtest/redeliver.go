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

// Redelivery is what became of the same events each time they came. Outcomes stand in the order of the events.
type Redelivery struct {
	// Crashed is of the process that died when it was about to commit for the first time: Undecided, for nothing of it
	// was kept.
	Crashed []inbox.Outcome
	// Concurrent is of two processes that got the events at the same time. For each event one says Applied (or whatever
	// the handler made of it) and the other Duplicate.
	Concurrent [2][]inbox.Outcome
	// Batched and Single are of a process started afterwards, that got the events at once and then one by one.
	Batched, Single []inbox.Outcome
}

// Count is how often event i had the outcome o. A handler that deduplicates has Count(i, inbox.Applied) == 1.
func (r Redelivery) Count(i int, o inbox.Outcome) (n int) {
	for _, outcomes := range [][]inbox.Outcome{r.Crashed, r.Concurrent[0], r.Concurrent[1], r.Batched, r.Single} {
		if outcomes[i] == o {
			n++
		}
	}
	return n
}

// Redeliver delivers the same events in every way in which they come more than once: to a process that dies before its
// first COMMIT, to two processes at once, and to one that starts afterwards, in a batch and one by one. See [Deliver]
// for what a delivery is.
//
// build makes the handler of one process on the pool that it is given; the pools are made from the configuration of db
// and closed in the end. The handler must use that pool, or the crash does not happen, which ends the test. build's
// error ends it, too. The error returned is the first of a handler, but for the one that crashed.
//
// What the effect did is the test's to look at: rows once, and whatever was done outside of the transaction as often as
// the effect ran, which is twice at least.
func Redeliver(ctx context.Context, t testing.TB, db *pgxpool.Pool, build func(db *pgxpool.Pool) (inbox.Handler, error),
	events ...event.Event,
) (Redelivery, error) {
	t.Helper()
	read := asConsumed(t, events)
	var r Redelivery
	life, die := context.WithCancel(ctx)
	defer die()
	c := &crash{die: die}
	h, end := process(ctx, t, db, build, c)
	c.armed.Store(true)
	r.Crashed, _ = deliver(life, t, h, read)
	end()
	if !c.dead.Load() && slices.Contains(r.Crashed, inbox.Applied) {
		t.Fatal("outboxtest: Redeliver: the handler committed elsewhere: build must make it on the pool that it " +
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
		errs = append(errs, fmt.Errorf("the batch that came again: %w", err))
	}
	for i := range read {
		out, err := deliver(ctx, t, h, read[i:i+1])
		r.Single, errs = append(r.Single, out[0]), append(errs, err)
	}
	return r, cmp.Or(errs...)
}

// process makes a pool and the handler on it: what a process of its own would have. It prepares the handler as a
// consumer does: the inbox registers and makes its days, in transactions of its own. c is nil when it lives on.
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
		c.trace(cfg)
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
