// Package cycle does what a pump repeats: claim, publish, settle. It has no loop over claims, and no goroutine that
// outlives an attempt to send.
package cycle

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/effectonce/effectonce/internal/pgerr"
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

// ClaimLanes claims the granted lanes, and gives those back that cannot be worked on.
func (r *Cycle) ClaimLanes(ctx context.Context, s *Session, grants []lanes.Grant) (*Claim, error) {
	since := time.Now()
	c, lost, unknown, err := r.claim(ctx, s, grants)
	if err != nil {
		if !r.dueRefused(grants, err) {
			r.overran(grants, err)
		}
		if unknown {
			r.doubt(grants)
		} else {
			for i := range grants {
				r.beatIf(r.Lanes.GiveBack(&grants[i]))
			}
		}
		return nil, fmt.Errorf("relay: claim: %w", err)
	}
	c.took = time.Since(since)
	r.doubt(lost)
	discarded, behind := 0, 0
	for i := range c.Parts {
		l := &c.Parts[i]
		discarded += l.discarded
		behind += l.Behind
		r.Lanes.Claimed(&l.Grant)
	}
	if behind > 0 && r.Observer.Behind != nil {
		r.Observer.Behind(behind)
	}
	if len(c.Events) > 0 && r.Observer.Claimed != nil {
		r.Observer.Claimed(len(c.Events), discarded, time.Since(since))
	}
	if discarded > 0 {
		r.Log.Warn("journalled events are gone from the outbox: somebody deleted them; their numbers stay gaps",
			"events", discarded)
	}
	return c, nil
}

// doubt puts lanes in doubt: they need a heartbeat before any other step.
func (r *Cycle) doubt(grants []lanes.Grant) {
	for _, g := range grants {
		r.Lanes.Doubt(g.Lane, g.Fence)
	}
	r.beatIf(len(grants) > 0)
}

// overran records that a claim or settle of lanes timed out, or that the server refused it, if the error says so.
func (r *Cycle) overran(grants []lanes.Grant, err error) {
	switch late, refused := late(err), pgerr.Answered(err); {
	case late:
		r.Log.Warn("work did not fit into the lease's time: it is repeated in smaller parts", "lanes", len(grants),
			"error", err)
	case !refused:
		return
	}
	r.Lanes.Overran(grants)
	if len(grants) == 1 {
		if !late(err) {
			r.Refuse(grants[0].Lane, err, false)
		}
		r.Lanes.Rest(grants[0].Lane, time.Now())
	}
}

// late reports whether the time for a transaction was over.
func late(err error) bool {
	return pgerr.Is(err, pgerr.QueryCanceled) || errors.Is(err, context.DeadlineExceeded) && !pgerr.Away(err)
}

// beatIf asks for a heartbeat now, if lanes need one.
func (r *Cycle) beatIf(needed bool) {
	if needed {
		r.Signals.Beat()
	}
}
