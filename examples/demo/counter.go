package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgschema"
)

// counts says how many payments have reached each step.
type counts struct {
	paid, published, booked, mailed int
	unpublished                     int // outbox rows and journal entries
	unsent                          int // notifications that are still to be sent
}

func (c counts) String() string {
	return fmt.Sprintf("paid %d, published %d, booked %d, mailed %d", c.paid, c.published, c.booked, c.mailed)
}

// counter counts the payments periodically.
type counter struct {
	db    *pgxpool.Pool
	query string
	paid  *atomic.Int64
	last  atomic.Pointer[counts]
}

const (
	countEvery = 150 * time.Millisecond
	// stuckAfter is how long the counts may stay the same before the demo fails.
	stuckAfter = 90 * time.Second
)

func newCounter(db *pgxpool.Pool, prefix string, paid *atomic.Int64) *counter {
	c := &counter{db: db, query: pgschema.Expand(queryCounts, prefix), paid: paid}
	c.last.Store(&counts{})
	return c
}

// run counts until ctx ends and calls show with each result. It fails when the counts stay the same for stuckAfter.
func (c *counter) run(ctx context.Context, show func(counts)) error {
	changed := time.Now()
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := c.count(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("counting: %w", err)
		}
		if now != *c.last.Swap(&now) {
			changed = time.Now()
		}
		if time.Since(changed) > stuckAfter {
			return fmt.Errorf("no progress for %v: %v", stuckAfter, now)
		}
		show(now)
	}
}

func (c *counter) count(ctx context.Context) (now counts, err error) {
	now.paid = int(c.paid.Load())
	var events, claims, entries int
	err = c.db.QueryRow(ctx, c.query).Scan(&events, &claims, &entries, &now.mailed, &now.unsent)
	now.unpublished, now.booked = events+claims, entries/2
	// The outbox may hold payments that were accepted after paid was read.
	now.published = max(0, now.paid-events)
	return now, err
}

// await waits until the last counts satisfy reached.
func (c *counter) await(ctx context.Context, reached func(counts) bool) error {
	tick := time.NewTicker(countEvery / 3)
	defer tick.Stop()
	for !reached(*c.last.Load()) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}
