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

// published is the result of publishing a claim.
type published struct {
	acked int
	left  map[int16]bool // lanes with events whose outcome is unknown when time was up
	late  bool           // time was up because the lease may have run out
	rest  *claim         // the part that is retried apart
}

// publish sends a claim's events until each has its fate, or time is up. Lanes that fail while others answer are
// retried apart, if all is not nil.
func (r *Relay) publish(ctx context.Context, c *claim, all *remainders) (result published) {
	d := delivery.New(c.events, c.items)
	leave := func(failure error, since time.Time) bool {
		if !r.mayRetryApart(ctx, all, since) {
			return false
		}
		result.rest = c.split(d.Lanes())
		r.reportPublish(result.rest.by, failure) // its failures count on their own from now on
		r.reportPublish(c.by, nil)
		return true
	}
	result.acked, result.late = r.deliver(ctx, c.by, grantsOf(c.lanes), d, c.paused, leave)
	if result.rest == nil {
		result.left = d.Lanes()
	}
	return result
}

// deliver sends events of granted lanes, for a part of the relay, until each has its fate. Events whose outcome is
// unknown are sent again, the same and in the same order, with growing pauses and without a limit: an unreachable
// broker costs only time. It gives up when ctx ends, when a lease is no longer certain (late), and when leave returns
// true after a failed attempt. since is the start of the delivery.
func (r *Relay) deliver(ctx context.Context, part string, grants []lanes.Grant, d *delivery.Delivery, paused []string,
	leave func(failure error, since time.Time) bool,
) (acked int, late bool) {
	ctx, end := r.startPublish(ctx, d.Events())
	defer func() { end(acked) }()
	r.holdBack(ctx, d, grants, paused)
	pause, since, attempts := outage.NewBackOff(), time.Now(), 0
	for d.Len() > 0 {
		held, release := r.whileHeld(ctx, grants, r.health.Closing())
		if held.Err() != nil {
			release()
			if late = ctx.Err() == nil; !late {
				r.undrained.Add(int64(d.Len()))
			}
			break
		}
		attempts++
		n, failure := r.attempt(held, part, d)
		release()
		acked += n
		if failure == nil || d.Len() == 0 {
			continue
		}
		if r.cfg.Observer.PublishFailed != nil {
			r.cfg.Observer.PublishFailed(d.Len(), failure)
		}
		if leave != nil && ctx.Err() == nil && leave(failure, since) {
			break
		}
		_ = sleep.For(ctx, pause.NextBackOff())
	}
	if acked > 0 && r.cfg.Observer.Published != nil {
		r.cfg.Observer.Published(acked, attempts, time.Since(since))
	}
	return acked, late
}

// attempt sends the undecided events once, for a part of the relay. failure is nil if refusals explain every missing
// ack: then the rest is sent at once.
func (r *Relay) attempt(ctx context.Context, part string, d *delivery.Delivery) (n int, failure error) {
	began := time.Now()
	verdicts := r.send(ctx, d.Events())
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
		r.reportPublish(part, nil) // events without an ack are held or parked
	} else if context.Cause(ctx) != errLeaseOver {
		r.reportPublish(part, failure)
	}
	return n, failure
}

// reportPublish records the end of an attempt. A topic that cannot be pinned is the database's failure.
func (r *Relay) reportPublish(part string, failure error) {
	pins := part + ", pins"
	if _, pin := errors.AsType[*pinError](failure); pin {
		r.postgres.Report(pins, failure, time.Now())
		return
	}
	r.kafka.Report(part, failure, time.Now())
	if failure == nil {
		r.postgres.Report(pins, nil, time.Now())
	}
}

// reading is a reading of the database's clock, and the local time of it.
type reading struct{ database, local time.Time }

// send gives events to the publisher, with the database's time: this machine's clock may be days behind, and Kafka
// would delete such records at once.
func (r *Relay) send(ctx context.Context, events []event.Event) []error {
	if c := r.clock.Load(); c != nil {
		now := c.database.Add(time.Since(c.local))
		for i := range events {
			events[i].Position.Timestamp = now
		}
	}
	return r.to.Publish(ctx, events)
}

// errLeaseOver ends an attempt whose lanes another relay may own by now.
var errLeaseOver = errors.New("relay: the lease ran out")

// errClosing ends an attempt because another pump has closed a place: it may be the one that this attempt waits for.
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
