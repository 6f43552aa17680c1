package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgschema"
)

// counts is how far the payments have come.
type counts struct {
	paid, published, booked, mailed int
	left                            int // outbox rows and journal entries
	unsent                          int // notifications that a sender still owes
}

func (c counts) String() string {
	return fmt.Sprintf("paid %d, published %d, booked %d, mailed %d", c.paid, c.published, c.booked, c.mailed)
}

// counter looks how far the payments have come, again and again.
type counter struct {
	db    *pgxpool.Pool
	query string
	paid  *atomic.Int64
	last  atomic.Pointer[counts]
}

const (
	countEvery = 150 * time.Millisecond
	// stuckAfter is how long nothing may move before the demo gives up. A loaded machine is slow, but not that slow.
	stuckAfter = 90 * time.Second
)

func newCounter(db *pgxpool.Pool, prefix string, paid *atomic.Int64) *counter {
	c := &counter{db: db, query: pgschema.Expand(queryCounts, prefix), paid: paid}
	c.last.Store(&counts{})
	return c
}

// run counts until ctx ends, and shows each count. It fails when nothing moves any more.
func (c *counter) run(ctx context.Context, show func(counts)) error {
	moved := time.Now()
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := c.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("counting: %w", err)
		}
		if now != *c.last.Swap(&now) {
			moved = time.Now()
		}
		if time.Since(moved) > stuckAfter {
			return fmt.Errorf("nothing has moved for %v: %v", stuckAfter, now)
		}
		show(now)
	}
}

func (c *counter) look(ctx context.Context) (now counts, err error) {
	now.paid = int(c.paid.Load())
	var events, claims, entries int
	err = c.db.QueryRow(ctx, c.query).Scan(&events, &claims, &entries, &now.mailed, &now.unsent)
	now.left, now.booked = events+claims, entries/2
	// Payments that were answered after the look at their counter may be in the outbox already.
	now.published = max(0, now.paid-events)
	return now, err
}

// await returns when a count is ripe.
func (c *counter) await(ctx context.Context, ripe func(counts) bool) error {
	tick := time.NewTicker(countEvery / 3)
	defer tick.Stop()
	for !ripe(*c.last.Load()) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}
