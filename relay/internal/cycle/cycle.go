// Package cycle does what a pump repeats: claim, publish, settle. It has no loop over claims, and no goroutine that
// outlives an attempt to send.
package cycle

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/effectonce/effectonce/internal/tracing"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/start"
)

// Cycle is what its users share: pumps, the WAL feed, the reviver and the prober.
type Cycle struct {
	*start.Start
	Tracer                *tracing.Tracer // nil: no spans
	MostEvents, MostBytes int             // of a claim
	BulkFrom              int             // [BulkFrom]
	Archive               bool            // published events go to the archive
	ParkEvent             bool            // a refused event is parked without its key

	Undrained atomic.Int64 // events that the end of work left without an ack

	passedSaid atomic.Pointer[time.Time] // when reportPassed last said something
}

// Session is a session with Postgres, and the slices of its last claim for reuse.
type Session struct {
	*pg.Session
	claimed, scratch buffers
}

// Apart retries the part of a claim that fails while others answer, apart from the rest. May reports whether there may
// be such a part now; since is the start of the claim's delivery.
type Apart struct {
	May   func(ctx context.Context, since time.Time) bool
	Retry func(ctx context.Context, rest *Claim)
}

// Step claims, publishes and settles once for the granted lanes, and gives each back to the table. Part of the claim
// may be retried apart, if apart is not nil. Its error is the database's: failures of Kafka are retried within, or left
// to the next claim of the lane.
func (r *Cycle) Step(ctx context.Context, s *Session, grants []lanes.Grant, apart *Apart) (published int,
	err error,
) {
	c, err := r.ClaimLanes(ctx, s, grants)
	if err != nil {
		return 0, err
	}
	return r.Complete(ctx, s, c, apart)
}

// Complete publishes and settles a claim.
func (r *Cycle) Complete(ctx context.Context, s *Session, c *Claim, apart *Apart) (published int, err error) {
	result := r.Publish(ctx, c, apart)
	if result.rest != nil {
		apart.Retry(ctx, result.rest)
	}
	err = r.Finish(ctx, s.Session, c, result)
	clear(c.Events) // release the payloads; the next claim reuses the slices
	clear(c.Items)
	s.claimed, s.scratch = buffers{c.Events, c.Items}, c.scratch
	return result.acked, err
}
