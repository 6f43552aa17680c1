package outboxtest

import (
	"context"
	"fmt"

	"github.com/effectonce/effectonce/event"
)

// Events returns the published events in order. An event that was published twice, as after a lost reply, is there
// twice.
func (p *MemoryPublisher) Events() []event.Event {
	return p.matching(func(event.Event) bool { return true })
}

// Key returns the published events of one key of a topic, in order.
func (p *MemoryPublisher) Key(topic, key string) []event.Event {
	return p.matching(func(e event.Event) bool { return e.Topic == topic && e.Key == key })
}

func (p *MemoryPublisher) matching(match func(event.Event) bool) []event.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []event.Event
	for _, e := range p.events {
		if match(e) {
			found = append(found, clone(e))
		}
	}
	return found
}

// Await waits until n events were published, repeated ones counted, and returns all. It fails if ctx ends first; with
// t.Context() it waits as long as the test may run.
func (p *MemoryPublisher) Await(ctx context.Context, n int) ([]event.Event, error) {
	for {
		events, changed := p.snapshot()
		if len(events) >= n {
			return p.Events(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return p.Events(), fmt.Errorf("outboxtest: %d events published, want %d: %w", len(events), n, ctx.Err())
		}
	}
}

// AwaitEvent waits for the first published event that match accepts. It fails if ctx ends first.
func (p *MemoryPublisher) AwaitEvent(ctx context.Context, match func(event.Event) bool) (event.Event, error) {
	for seen := 0; ; {
		events, changed := p.snapshot()
		for ; seen < len(events); seen++ {
			if e := clone(events[seen]); match(e) {
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

// snapshot returns the events, and a channel that is closed at the next change. The caller may read the slice without
// the lock: it is only appended to.
func (p *MemoryPublisher) snapshot() ([]event.Event, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.events[:len(p.events):len(p.events)], p.changed
}
