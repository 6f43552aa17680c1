package relay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/outage"
)

// remainder is the part of a claim that fails while others answer: lanes with events that are not acked. It is retried
// apart, so that the pump's other lanes do not wait.
type remainder struct {
	c      *claim
	result published
}

// remainders are those of a pump.
type remainders struct {
	done             chan remainder // has room for all
	n, events, bytes int
}

func newRemainders() *remainders { return &remainders{done: make(chan remainder, Lanes)} }

func (s *remainders) count(c *claim, sign int) {
	s.n, s.events = s.n+sign, s.events+sign*len(c.events)
	for i := range c.events {
		s.bytes += sign * (len(c.events[i].Payload) + textOf(&c.events[i]) + eventOverhead)
	}
}

// retryApart publishes the rest of a claim on a goroutine of its own. All remainders of a pump together are no larger
// than a claim may be, but for the last.
func (r *Relay) retryApart(work context.Context, all *remainders, c *claim) {
	all.count(c, 1)
	go func() {
		_ = sleep.For(work, outage.NewBackOff().NextBackOff())
		result := r.publish(work, c, nil)
		r.reportPublish(c.by, nil) // if it has failed so far, the remainder reports that now
		all.done <- remainder{c, result}
	}()
}

// settleRemainder settles a remainder whose publishing has ended.
func (r *Relay) settleRemainder(work context.Context, s *session, all *remainders, one remainder) {
	all.count(one.c, -1)
	r.report(s, grantsOf(one.c.lanes), r.finish(work, s, one.c, one.result))
}

// mayRetryApart reports whether the rest of an attempt may be retried apart. While no place answers, the claim is kept,
// and no more is claimed. If nothing else was sent, no place can have acked: then the publisher is asked.
func (r *Relay) mayRetryApart(ctx context.Context, all *remainders, since time.Time) bool {
	if all == nil || all.events >= r.cfg.ClaimEvents || all.bytes >= r.cfg.ClaimBytes {
		return false
	}
	to, ok := r.to.(Reacher)
	return r.health.OthersAnswer(since) || ok && r.askKafka(ctx, to) == nil
}

// split takes lanes out of a claim.
func (c *claim) split(lanes map[int16]bool) *claim {
	rest := &claim{epoch: c.epoch, paused: c.paused, took: c.took}
	c.lanes = slices.DeleteFunc(c.lanes, func(l laneClaim) bool {
		if lanes[l.Lane] {
			rest.lanes = append(rest.lanes, l)
		}
		return lanes[l.Lane]
	})
	for i := range c.events {
		if lanes[c.events[i].Position.Lane] {
			rest.events, rest.items = append(rest.events, c.events[i]), append(rest.items, c.items[i])
		}
	}
	rest.by = fmt.Sprintf("%s, lane %d", c.by, rest.lanes[0].Lane)
	return rest
}
