package outboxtest

import (
	"context"
	"fmt"

	"github.com/effectonce/effectonce/event"
)

// Events returns what was published so far, in order, as often as it was published: after a lost answer an event is
// there twice.
func (p *MemoryPublisher) Events() []event.Event {
	return p.matching(func(event.Event) bool { return true })
}

// Key returns what was published of one key of a topic, in order.
func (p *MemoryPublisher) Key(topic, key string) []event.Event {
	return p.matching(func(e event.Event) bool { return e.Topic == topic && e.Key == key })
}

func (p *MemoryPublisher) matching(match func(event.Event) bool) []event.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []event.Event
	for _, e := range p.events {
		if match(e) {
			found = append(found, copied(e))
		}
	}
	return found
}

// Await waits until n events were published, repeated ones counted, and returns all there are. Its error is that ctx
// ended before, with how many there were; give it a deadline, or t.Context() to wait as long as the test may run.
func (p *MemoryPublisher) Await(ctx context.Context, n int) ([]event.Event, error) {
	for {
		events, changed := p.look()
		if len(events) >= n {
			return p.Events(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return p.Events(), fmt.Errorf("outboxtest: %d of %d events were published: %w", len(events), n, ctx.Err())
		}
	}
}

// AwaitEvent waits for the first published event that match accepts. Its error is that ctx ended before.
func (p *MemoryPublisher) AwaitEvent(ctx context.Context, match func(event.Event) bool) (event.Event, error) {
	for seen := 0; ; {
		events, changed := p.look()
		for ; seen < len(events); seen++ {
			if e := copied(events[seen]); match(e) {
				return e, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return event.Event{}, fmt.Errorf("outboxtest: none of the %d published events matches: %w", seen, ctx.Err())
		}
	}
}

// look returns what there is and a channel that is closed when there is more. The slice only grows: it may be read.
func (p *MemoryPublisher) look() ([]event.Event, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.events[:len(p.events):len(p.events)], p.changed
}
