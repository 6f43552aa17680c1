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
	"github.com/effectonce/effectonce/outcome"
)

// MemoryPublisher is a relay's publisher that keeps events in memory, in order, and fails on demand. The zero value is
// ready to use and acknowledges all events. It is safe for concurrent use and must not be copied. Each topic is one
// partition: after an event without an acknowledgement a call publishes no other event of the topic.
type MemoryPublisher struct {
	mu       sync.Mutex
	events   []event.Event
	refusals map[int]refusal // by number
	numbers  int
	lost     int // next calls whose reply is lost
	failing  int // next calls that fail
	delay    time.Duration
	changed  chan struct{} // closed when events are published; nil: nobody waits
}

type refusal struct {
	match func(event.Event) bool
	topic bool
}

// Publish implements relay.Publisher.
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
		switch refused := p.refused(e); {
		case stopped[e.Topic]:
			verdicts[i] = errors.New("outboxtest: not sent: an earlier event of its topic was not acknowledged")
		case refused != nil:
			verdicts[i], stopped[e.Topic] = refused, true
		default:
			p.events = append(p.events, clone(e))
		}
	}
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	if p.lost > 0 {
		p.lost--
		return fill(verdicts, errors.New("outboxtest: the reply was lost: the outcome is unknown"))
	}
	return verdicts
}

func (p *MemoryPublisher) wait(ctx context.Context) error {
	p.mu.Lock()
	d := p.delay
	p.mu.Unlock()
	return sleep.For(ctx, d)
}

func (p *MemoryPublisher) refused(e event.Event) error {
	for _, n := range slices.Sorted(maps.Keys(p.refusals)) {
		if r := p.refusals[n]; r.match(e) {
			return r.verdict(e.Topic)
		}
	}
	return nil
}

// fill sets the missing verdicts to err.
func fill(verdicts []error, err error) []error {
	for i := range verdicts {
		if verdicts[i] == nil {
			verdicts[i] = err
		}
	}
	return verdicts
}

// clone copies e, whose memory the relay reuses.
func clone(e event.Event) event.Event {
	e.Payload, e.Headers = slices.Clone(e.Payload), maps.Clone(e.Headers)
	return e
}

// Refuse makes the publisher refuse the events that match, which the relay then parks. match is called under the
// publisher's lock. accept ends it.
func (p *MemoryPublisher) Refuse(match func(event.Event) bool) (accept func()) {
	return p.refuse(refusal{match, false})
}

// RefuseTopic makes the publisher refuse a whole topic, as a broker does with an unknown topic or without the right to
// write. accept ends it.
func (p *MemoryPublisher) RefuseTopic(topic string) (accept func()) {
	return p.refuse(refusal{func(e event.Event) bool { return e.Topic == topic }, true})
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

// LoseReplies makes the next n calls publish their events and return an unknown outcome. The relay sends those events
// again, so they are published twice. Zero ends it.
func (p *MemoryPublisher) LoseReplies(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = n
}

// Fail makes the next n calls publish nothing and return an unknown outcome, as with an unreachable broker. Zero ends
// it.
func (p *MemoryPublisher) Fail(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = n
}

// Delay delays every later call by d. A call whose context ends meanwhile publishes nothing. Zero ends it.
func (p *MemoryPublisher) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// verdict is the relay's kind of refusal.
func (r refusal) verdict(topic string) error {
	what := "event"
	if r.topic {
		what = "topic"
	}
	return &outcome.Refusal{
		Topic: r.topic,
		Err:   fmt.Errorf("outboxtest: topic %s refuses this %s: the publisher was told to", topic, what),
	}
}
