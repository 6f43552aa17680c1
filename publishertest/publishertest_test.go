package publishertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/event"
)

// broker takes events in memory.
type broker struct {
	mu   sync.Mutex
	log  []event.Event
	down bool
}

var errDown = errors.New("no broker")

func (b *broker) write(ctx context.Context, events []event.Event) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	verdicts := make([]error, len(events))
	for i := range events {
		if verdicts[i] = ctx.Err(); b.down {
			verdicts[i] = errDown
		}
		if verdicts[i] == nil {
			e := events[i]
			e.Payload = slices.Clone(e.Payload)
			b.log = append(b.log, e)
		}
	}
	return verdicts
}

func (b *broker) read() ([]event.Event, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.log), nil
}

func (b *broker) turn(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
}

type publish func(ctx context.Context, events []event.Event) []error

// Publish implements Harness.Publisher.
func (p publish) Publish(ctx context.Context, events []event.Event) []error { return p(ctx, events) }

func harness(b *broker, p publish) Harness {
	return Harness{Publisher: p, Topic: "t", Log: b.read, Break: func() func() {
		b.turn(true)
		return func() { b.turn(false) }
	}}
}

func TestRun(t *testing.T) {
	t.Parallel()
	Run(t, func(*testing.T) Harness {
		b := &broker{}
		return harness(b, b.write)
	})
}

// TestRunRefuses: each of these publishers breaks one sentence of relay.Publisher, and a check says so.
func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		check string
		make  func(b *broker) publish
	}{
		"asynchronous: it acks what it sends later": {"an ack is durable", func(b *broker) publish {
			var later []event.Event
			return func(ctx context.Context, events []event.Event) []error {
				b.write(ctx, later)
				later = slices.Clone(events)
				return make([]error, len(events))
			}
		}},
		"it acks without a broker": {"an outage acks nothing", func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) []error {
				b.write(ctx, events)
				return make([]error, len(events))
			}
		}},
		"it keeps the slice": {"events are the caller's again", func(b *broker) publish {
			var kept []event.Event
			return func(ctx context.Context, events []event.Event) []error {
				b.write(ctx, kept)
				kept = events
				return make([]error, len(events))
			}
		}},
		"it sorts": {"a key keeps its order", func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) []error {
				events = slices.Clone(events)
				slices.Reverse(events)
				return b.write(ctx, events)
			}
		}},
		"it goes on": {"an ended context sends nothing", func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) []error {
				return b.write(context.WithoutCancel(ctx), events)
			}
		}},
		"it stops at the first error": {"an outage acks nothing", func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) []error {
				verdicts := b.write(ctx, events)
				return verdicts[:1+slices.IndexFunc(verdicts, func(err error) bool { return err == nil })]
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &broker{}
			h := harness(b, c.make(b))
			for _, check := range checks {
				if check.name == c.check {
					if err := check.run(t.Context(), &h); err == nil {
						t.Error("the check passes")
					} else {
						t.Log(err)
					}
				}
			}
		})
	}
}
