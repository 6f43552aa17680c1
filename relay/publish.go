package relay

import (
	"context"
	"errors"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
)

// published is what became of a claim's events at the publisher.
type published struct {
	acked int
	left  map[int16]bool // lanes with events whose outcome is unknown, when there was no more time
	late  bool           // no more time because the lease may have run out
	rest  *claim         // what goes on by itself
}

// publish sends a claim's events until each has its fate. Events whose outcome is unknown are sent again, the same and
// in the same order, with growing pauses and without counting: an unreachable broker costs nobody anything but time. It
// gives up when ctx ends or when a lease is not certain any more, and leaves to stragglers, if not nil, what fails
// while others answer.
func (r *Relay) publish(ctx context.Context, c *claim, all *stragglers) published {
	result := published{left: map[int16]bool{}}
	if len(c.events) == 0 {
		return result
	}
	grants := make([]lanes.Grant, len(c.lanes))
	for i := range c.lanes {
		grants[i] = c.lanes[i].Grant
	}
	pause, since := outage.NewBackOff(), time.Now()
	d := delivery.New(c.events, c.items)
	r.holdBack(ctx, c, d)
	attempts := 0
	for d.Len() > 0 {
		held, release := r.whileHeld(ctx, grants, r.health.Closing())
		if held.Err() != nil {
			release()
			result.late = ctx.Err() == nil
			break
		}
		attempts++
		n, failure := r.attempt(held, c.by, d)
		release()
		result.acked += n
		if failure != nil && d.Len() > 0 {
			if r.cfg.Observer.PublishFailed != nil {
				r.cfg.Observer.PublishFailed(d.Len(), failure)
			}
			if ctx.Err() == nil && r.mayStraggle(ctx, all, since) {
				result.rest = c.split(d.Lanes())
				r.kafka.Report(result.rest.by, failure, time.Now()) // its trouble, from now on
				r.kafka.Report(c.by, nil, time.Now())
				break
			}
			_ = sleep.For(ctx, pause.NextBackOff())
		}
	}
	if result.acked > 0 && r.cfg.Observer.Published != nil {
		r.cfg.Observer.Published(result.acked, attempts, time.Since(since))
	}
	if result.rest != nil {
		return result
	}
	if ctx.Err() != nil {
		r.undrained.Add(int64(d.Len()))
	}
	result.left = d.Lanes()
	return result
}

// attempt sends what is undecided once, for a part of the relay. failure is nil when refusals explain all that is left:
// then the rest goes at once.
func (r *Relay) attempt(ctx context.Context, part string, d *delivery.Delivery) (n int, failure error) {
	began := time.Now()
	verdicts := r.hand(ctx, d.Events())
	if len(verdicts) != d.Len() {
		failure = errors.New("relay: the publisher did not return one verdict per event; nothing counts as acked")
		d.Unanswered()
		r.kafka.Report(part, failure, time.Now())
		return 0, failure
	}
	route := r.routes(ctx)
	n, failure, unsent := d.Take(verdicts)
	if n > 0 {
		r.health.Acked(time.Now(), func() map[delivery.Place]bool { return d.Acked(route) })
	}
	if n < d.Len() && !r.judge(d, verdicts, route, began, ctx.Err() == nil) && failure == nil {
		failure = unsent
	}
	d.DropDecided()
	if n > 0 && d.Len() == 0 {
		r.kafka.Report(part, nil, time.Now()) // what has no ack is held or parked
	} else if context.Cause(ctx) != errLeaseOver {
		r.kafka.Report(part, failure, time.Now())
	}
	return n, failure
}

// reading is what the database's clock said, and when by this machine's.
type reading struct{ database, local time.Time }

// hand gives events to the publisher, with the database's time: this machine's clock may be days behind, and records of
// then would be deleted at once.
func (r *Relay) hand(ctx context.Context, events []event.Event) []error {
	if c := r.clock.Load(); c != nil {
		now := c.database.Add(time.Since(c.local))
		for i := range events {
			events[i].Position.Timestamp = now
		}
	}
	return r.to.Publish(ctx, events)
}

// errLeaseOver ends an attempt whose lanes may be another relay's by now.
var errLeaseOver = errors.New("relay: the lease ran out")

// errClosing ends an attempt because a place was closed by another pump: it may be the one that this attempt waits for.
var errClosing = errors.New("relay: a partition or topic is held from now on")

// whileHeld returns a context that ends when the lease of one of the lanes runs out on the local clock. Heartbeats that
// renew the lease meanwhile move the end: a slow broker does not cost a lane. It ends with closing, too, if that is not
// nil.
func (r *Relay) whileHeld(ctx context.Context, grants []lanes.Grant, closing <-chan struct{}) (held context.Context,
	release func(),
) {
	held, cancel := context.WithCancelCause(ctx)
	until, ok := r.lanes.Deadline(grants)
	if !ok || !time.Now().Before(until) {
		cancel(errLeaseOver)
		return held, func() {}
	}
	done := make(chan struct{})
	timer := time.NewTimer(time.Until(until))
	go func() {
		defer close(done)
		for {
			select {
			case <-held.Done():
				return
			case <-closing:
				cancel(errClosing)
				return
			case <-timer.C:
			}
			until, ok := r.lanes.Deadline(grants)
			left := time.Until(until)
			if !ok || left <= 0 {
				cancel(errLeaseOver)
				return
			}
			timer.Reset(left)
		}
	}()
	return held, func() {
		timer.Stop()
		cancel(nil)
		<-done
	}
}
