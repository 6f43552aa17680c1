package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/sleep"
)

// MemoryPublisher is a relay's publisher that keeps what it is given, in order, and misbehaves when it is told to. The
// zero value is ready and acknowledges everything; it is safe for concurrent use and must not be copied. Each topic is
// one partition: behind an event that was not acknowledged nothing of its topic is published by the same call.
type MemoryPublisher struct {
	mu       sync.Mutex
	events   []event.Event
	refusals map[int]refusal // by number, for each ends by itself
	numbers  int
	lost     int // calls that still lose their answer
	failing  int // calls that still do nothing
	delay    time.Duration
	changed  chan struct{} // closed when events were published; nil: nobody waits
}

type refusal struct {
	match func(event.Event) bool
	scope string
}

// Publish is a relay's: one verdict per event.
func (p *MemoryPublisher) Publish(ctx context.Context, events []event.Event) []error {
	verdicts := make([]error, len(events))
	if err := p.wait(ctx); err != nil {
		return fill(verdicts, fmt.Errorf("outboxtest: not sent: %w", err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing > 0 {
		p.failing--
		return fill(verdicts, errors.New("outboxtest: not sent: the publisher was told to fail"))
	}
	stopped := map[string]bool{}
	for i, e := range events {
		switch why := p.refused(e); {
		case stopped[e.Topic]:
			verdicts[i] = errors.New("outboxtest: not sent: an earlier event of its topic was not acknowledged")
		case why != nil:
			verdicts[i], stopped[e.Topic] = why, true
		default:
			p.events = append(p.events, copied(e))
		}
	}
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	if p.lost > 0 {
		p.lost--
		return fill(verdicts, errors.New("outboxtest: the answer was lost: the outcome is unknown"))
	}
	return verdicts
}

// wait takes the time that Delay asks for.
func (p *MemoryPublisher) wait(ctx context.Context) error {
	p.mu.Lock()
	d := p.delay
	p.mu.Unlock()
	return sleep.For(ctx, d)
}

func (p *MemoryPublisher) refused(e event.Event) error {
	for _, n := range slices.Sorted(maps.Keys(p.refusals)) {
		if r := p.refusals[n]; r.match(e) {
			return &rejection{topic: e.Topic, scope: r.scope}
		}
	}
	return nil
}

// fill gives every event that has no verdict yet the same one.
func fill(verdicts []error, err error) []error {
	for i := range verdicts {
		if verdicts[i] == nil {
			verdicts[i] = err
		}
	}
	return verdicts
}

// copied shares nothing with e, whose slice the relay uses again.
func copied(e event.Event) event.Event {
	e.Payload, e.Headers = slices.Clone(e.Payload), maps.Clone(e.Headers)
	return e
}

// Refuse makes the publisher refuse, for certain, the events that match: the relay will not send such an event again by
// itself. match is called under the publisher's lock. The function returned ends it.
func (p *MemoryPublisher) Refuse(match func(event.Event) bool) (accept func()) {
	return p.refuse(refusal{match, "record"})
}

// RefuseTopic makes the publisher refuse a whole topic, as a broker does that does not know it or may not be written
// to. The function returned ends it.
func (p *MemoryPublisher) RefuseTopic(topic string) (accept func()) {
	return p.refuse(refusal{func(e event.Event) bool { return e.Topic == topic }, "topic"})
}

func (p *MemoryPublisher) refuse(r refusal) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusals == nil {
		p.refusals = map[int]refusal{}
	}
	p.numbers++
	n := p.numbers
	p.refusals[n] = r
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.refusals, n)
	}
}

// LoseReplies makes the next n calls publish and answer that nobody knows: the relay sends those events again, and they
// are published twice. Zero ends it.
func (p *MemoryPublisher) LoseReplies(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = n
}

// Fail makes the next n calls publish nothing and answer that nobody knows, as an unreachable broker does. Zero ends
// it.
func (p *MemoryPublisher) Fail(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = n
}

// Delay makes every later call take d longer; a call whose context ends meanwhile publishes nothing. Zero ends it.
func (p *MemoryPublisher) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// rejection is a certain refusal as the relay knows it.
type rejection struct{ topic, scope string }

func (r *rejection) Error() string {
	return fmt.Sprintf("outboxtest: topic %s refuses this %s: the publisher was told to", r.topic, r.scope)
}

// Rejected is true: nothing was published.
func (*rejection) Rejected() bool { return true }

// Scope is "record" or "topic".
func (r *rejection) Scope() string { return r.scope }
