package relay

import (
	"context"
	"errors"
	"time"

	"github.com/effectonce/effectonce/event"
)

// published is what became of a claim's events at the publisher.
type published struct {
	acked   int
	stopped map[int16]*stopped // lanes with a refused event
	left    map[int16]bool     // lanes with events whose outcome is unknown, when there was no more time
	late    bool               // no more time because the lease may have run out
}

// publish sends a claim's events until each is acked or its lane is stopped by a refusal. Events whose outcome is unknown
// are sent again, the same and in the same order, with growing pauses and without counting: an unreachable broker costs
// nobody anything but time. It gives up when ctx ends or when a lease is not certain any more.
func (r *Relay) publish(ctx context.Context, c *claim) published {
	result := published{stopped: map[int16]*stopped{}, left: map[int16]bool{}}
	grants := make([]grant, len(c.lanes))
	for i := range c.lanes {
		grants[i] = c.lanes[i].grant
	}
	pause, since := newBackOff(), time.Now()
	todo := c.events
	for attempt := 1; len(todo) > 0; attempt++ {
		held, release := r.whileHeld(ctx, grants)
		if held.Err() != nil {
			release()
			result.late = ctx.Err() == nil
			break
		}
		var acked int
		var failure error
		todo, acked, failure = r.attempt(held, c, todo, &result)
		late := context.Cause(held) == errLeaseOver
		release()
		result.acked += acked
		if !late {
			r.kafka.report(failure, time.Now())
		}
		if failure != nil && len(todo) > 0 {
			if r.cfg.Observer.PublishFailed != nil {
				r.cfg.Observer.PublishFailed(len(todo), failure)
			}
			pauseFor(ctx, pause.NextBackOff())
			continue
		}
		if acked > 0 && r.cfg.Observer.Published != nil {
			r.cfg.Observer.Published(result.acked, attempt, time.Since(since))
		}
	}
	if ctx.Err() != nil {
		r.undrained.Add(int64(len(todo)))
	}
	for i := range todo {
		result.left[todo[i].Position.Lane] = true
	}
	return result
}

// errLeaseOver ends an attempt whose lanes may be another relay's by now.
var errLeaseOver = errors.New("relay: the lease ran out")

// whileHeld returns a context that ends when the lease of one of the lanes runs out on the local clock. Heartbeats that
// renew the lease meanwhile move the end: a slow broker does not cost a lane.
func (r *Relay) whileHeld(ctx context.Context, grants []grant) (held context.Context, release func()) {
	held, cancel := context.WithCancelCause(ctx)
	until, ok := r.lanes.deadline(grants)
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
			case <-timer.C:
			}
			until, ok := r.lanes.deadline(grants)
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

// attempt sends the events once and returns those to send again, with the first reason. Lanes with a refused event are
// stopped: what remains of them is not sent again by this claim.
func (r *Relay) attempt(ctx context.Context, c *claim, todo []event.Event, result *published) (again []event.Event, acked int, failure error) {
	verdicts := r.to.Publish(ctx, todo)
	if len(verdicts) != len(todo) {
		return todo, 0, errors.New("relay: the publisher did not return one verdict per event; nothing counts as acked")
	}
	for i, err := range verdicts {
		lane := todo[i].Position.Lane
		switch scope, refused := "", false; {
		case err == nil:
			acked++
		default:
			if scope, refused = rejected(err); refused && result.stopped[lane] == nil {
				e := todo[i]
				e.Payload, e.Headers = nil, nil
				result.stopped[lane] = &stopped{event: e, scope: scope, err: err}
			} else if failure == nil && !refused {
				failure = err
			}
			again = append(again, todo[i])
		}
	}
	if len(result.stopped) == 0 {
		return again, acked, failure
	}
	return setAside(c, again, result), acked, failure
}

// setAside takes the events of stopped lanes out of what is to be sent, and notes which of their numbers are acked.
func setAside(c *claim, again []event.Event, result *published) []event.Event {
	open := make(map[int16]map[int64]struct{}, len(result.stopped))
	rest := again[:0]
	for _, e := range again {
		lane := e.Position.Lane
		if result.stopped[lane] == nil {
			rest = append(rest, e)
			continue
		}
		if open[lane] == nil {
			open[lane] = map[int64]struct{}{}
		}
		open[lane][e.Position.Seq] = struct{}{}
	}
	for i := range c.lanes {
		l := &c.lanes[i]
		stop := result.stopped[l.lane]
		if stop == nil || stop.acked != nil {
			continue
		}
		stop.acked = make(map[int64]struct{}, l.count)
		for seq := range l.acked {
			stop.acked[seq] = struct{}{}
		}
		for j := range c.events {
			if p := &c.events[j].Position; p.Lane == l.lane {
				if _, unacked := open[l.lane][p.Seq]; !unacked {
					stop.acked[p.Seq] = struct{}{}
				}
			}
		}
	}
	return rest
}
