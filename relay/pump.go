package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
)

// pump owns some of a relay's lanes (lane modulo pumps) and repeats one step: claim, publish, settle. It makes no new
// claim once ctx has ended, and finishes its claim while work lives.
func (r *Relay) pump(ctx, work context.Context, number int) {
	s := r.session(fmt.Sprintf("pump %d", number))
	defer s.Close()
	pause, rest := outage.NewBackOff(), newRemainders()
	for ctx.Err() == nil {
		for len(rest.done) > 0 {
			r.settleRemainder(work, s, rest, <-rest.done)
		}
		grants := r.lanes.Take(number, r.cfg.Pumps, time.Now())
		if len(grants) == 0 {
			if r.lanes.Idle(number, r.cfg.Pumps) { // the lanes that it failed at are gone
				r.postgres.Report(s.Name, nil, s.Heard())
				r.reportPublish(s.Name, nil)
			}
			var rested <-chan time.Time
			if at := r.lanes.Rested(number, r.cfg.Pumps, time.Now()); !at.IsZero() {
				rested = time.After(time.Until(at))
			}
			select {
			case <-ctx.Done():
			case <-r.kicks[number]:
			case <-rested:
			case one := <-rest.done:
				r.settleRemainder(work, s, rest, one)
			}
			continue
		}
		_, err := r.step(work, s, grants, rest)
		switch rests := r.report(s, grants, err); {
		case err == nil:
			pause.Reset()
			continue
		case rests:
			continue
		}
		_ = sleep.For(ctx, pause.NextBackOff())
	}
	for rest.n > 0 {
		r.settleRemainder(work, s, rest, <-rest.done)
	}
}

// step claims, publishes and settles once for the granted lanes, and gives each back to the table. Part of the claim
// may be retried apart, if rest is not nil. Its error is the database's: failures of Kafka are retried within, or left
// to the next claim of the lane.
func (r *Relay) step(ctx context.Context, s *session, grants []lanes.Grant, rest *remainders) (published int,
	err error,
) {
	c, err := r.claimLanes(ctx, s, grants)
	if err != nil {
		return 0, err
	}
	return r.complete(ctx, s, c, rest)
}

// complete publishes and settles a claim.
func (r *Relay) complete(ctx context.Context, s *session, c *claim, rest *remainders) (published int, err error) {
	result := r.publish(ctx, c, rest)
	if result.rest != nil {
		r.retryApart(ctx, rest, result.rest)
	}
	err = r.finish(ctx, s, c, result)
	clear(c.events) // release the payloads; the next claim reuses the slices
	clear(c.items)
	s.claimed, s.scratch = buffers{c.events, c.items}, c.scratch
	return result.acked, err
}

// claimLanes claims the granted lanes, and gives those back that cannot be worked on.
func (r *Relay) claimLanes(ctx context.Context, s *session, grants []lanes.Grant) (*claim, error) {
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
				r.beatIf(r.lanes.GiveBack(&grants[i]))
			}
		}
		return nil, fmt.Errorf("relay: claim: %w", err)
	}
	c.took = time.Since(since)
	r.doubt(lost)
	discarded, behind := 0, 0
	for i := range c.lanes {
		l := &c.lanes[i]
		discarded += l.discarded
		behind += l.behind
		r.lanes.Claimed(&l.Grant)
	}
	if behind > 0 && r.cfg.Observer.Behind != nil {
		r.cfg.Observer.Behind(behind)
	}
	if len(c.events) > 0 && r.cfg.Observer.Claimed != nil {
		r.cfg.Observer.Claimed(len(c.events), discarded, time.Since(since))
	}
	if discarded > 0 {
		r.log.Warn("journalled events are gone from the outbox: somebody deleted them; their numbers stay gaps",
			"events", discarded)
	}
	return c, nil
}

// doubt puts lanes in doubt: they need a heartbeat before any other step.
func (r *Relay) doubt(grants []lanes.Grant) {
	for _, g := range grants {
		r.lanes.Doubt(g.Lane, g.Fence)
	}
	r.beatIf(len(grants) > 0)
}

// refusalsEvery is how often it is said that the server refuses the work on a lane.
const refusalsEvery = 30 * time.Second

// report records the end of a step. It is no outage that the server refuses the work on lanes: they are claimed apart
// until those at fault rest alone, a heartbeat tells whether the server can write, and a proof whether the relay can
// work. rests: the pump need not pause, because the lane does.
func (r *Relay) report(s *session, grants []lanes.Grant, err error) (rests bool) {
	outage := err
	switch {
	case err == nil:
		for _, g := range grants {
			r.worked(g.Lane, false)
		}
	case pgerr.Answered(err):
		if pgerr.Away(err) {
			r.requestBeat() // which tells whether the server can write
		}
		outage, rests = nil, len(grants) == 1
	}
	r.postgres.Report(s.Name, outage, s.Heard())
	return rests
}

// overran records that a claim or settle of lanes timed out, or that the server refused it, if the error says so.
func (r *Relay) overran(grants []lanes.Grant, err error) {
	switch late, refused := late(err), pgerr.Answered(err); {
	case late:
		r.log.Warn("work did not fit into the lease's time: it is repeated in smaller parts", "lanes", len(grants),
			"error", err)
	case !refused:
		return
	}
	r.lanes.Overran(grants)
	if len(grants) == 1 {
		if !late(err) {
			r.refuse(grants[0].Lane, err, false)
		}
		r.lanes.Rest(grants[0].Lane, time.Now())
	}
}

// late reports whether the time for a transaction was over.
func late(err error) bool {
	return pgerr.Is(err, pgerr.QueryCanceled) || errors.Is(err, context.DeadlineExceeded) && !pgerr.Away(err)
}

// refusedLane is a lane that the server refuses the work on.
type refusedLane struct {
	since, at, said time.Time
	last            error
	due             bool // with the move of due events: other work goes on
}

// over reports whether due events have not been refused for a while: they were cancelled, or another move succeeded.
func (l *refusedLane) over(now time.Time) bool { return l.due && now.Sub(l.at) > refusalsEvery }

// refuse notes that the work on one lane alone is refused.
func (r *Relay) refuse(lane int16, err error, due bool) {
	now := time.Now()
	l := refusedLane{since: now}
	if before, ok := r.refused.Load(lane); ok {
		l = before.(refusedLane)
	}
	l.at, l.due = now, due
	if l.last = err; now.Sub(l.said) > refusalsEvery {
		l.said = now
		defer r.requestBeat() // it shows operators the trouble
		r.log.Error("the database refuses the work on a lane: its events wait, those of other lanes go on", "lane",
			lane, "error", err)
	}
	r.refused.Store(lane, l)
}

// worked notes that work on a lane was done: the move of its due events, or other work.
func (r *Relay) worked(lane int16, due bool) {
	if was, ok := r.refused.Load(lane); ok && was.(refusedLane).due == due {
		r.refused.Delete(lane)
		r.requestBeat()
	}
}

// beatIf asks for a heartbeat now, if lanes need one.
func (r *Relay) beatIf(needed bool) {
	if needed {
		r.requestBeat()
	}
}
