package publishertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
)

// broker takes events in memory.
type broker struct {
	mu   sync.Mutex
	log  []event.Event
	down bool
}

var (
	errDown    = errors.New("no broker")
	errRefused = errors.New("the broker does not like it")
)

func (b *broker) write(ctx context.Context, events []event.Event) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	verdicts, failed := make([]error, len(events)), map[string]bool{}
	for i, e := range events {
		switch {
		case b.down:
			verdicts[i] = errDown
		case failed[e.Key]:
			verdicts[i] = outcome.Retryable(errors.New("an earlier event of the key failed"))
		case string(e.Payload) == "refused":
			verdicts[i] = &outcome.Refusal{Err: errRefused}
		default:
			verdicts[i] = ctx.Err()
		}
		if failed[e.Key] = verdicts[i] != nil; failed[e.Key] {
			continue
		}
		e.Payload = slices.Clone(e.Payload)
		b.log = append(b.log, e)
	}
	return verdicts
}

func (b *broker) reach(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return errDown
	}
	return nil
}

func route(e *event.Event) int32 { return int32(len(e.Key) % 3) }

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

// whole is a publisher with the optional methods.
type whole struct {
	publish
	route func(e *event.Event) int32
	reach func(ctx context.Context) error
}

// Route implements relay.Router.
func (w whole) Route(context.Context, string) (func(e *event.Event) int32, error) {
	return w.route, nil
}

// Reach implements relay.Reacher.
func (w whole) Reach(ctx context.Context) error { return w.reach(ctx) }

func harness(b *broker, w whole) Harness {
	return Harness{
		Publisher: w, Topic: "t", Log: b.read,
		Break: func() func() {
			b.turn(true)
			return func() { b.turn(false) }
		},
		Refuse: func(e *event.Event) { e.Payload = []byte("refused") },
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	Run(t, func(*testing.T) Harness {
		b := &broker{}
		return harness(b, whole{b.write, route, b.reach})
	})
}

// mine is the publisher of docs/embedding.md.
type mine struct {
	send func(ctx context.Context, e *event.Event) error // nil: the event is durable
}

var errBehind = errors.New("an earlier event failed")

// Publish implements relay.Publisher.
func (m mine) Publish(ctx context.Context, events []event.Event) []error {
	verdicts, failed := make([]error, len(events)), false
	for i := range events {
		if failed {
			verdicts[i] = outcome.Retryable(errBehind) // not sent
			continue
		}
		err := m.send(ctx, &events[i])
		if errors.Is(err, errRefused) {
			err = &outcome.Refusal{Code: "TOO_LARGE", Err: err}
		}
		verdicts[i], failed = err, err != nil // nil: acked; another error: sent again
	}
	return verdicts
}

func TestOwnPublisher(t *testing.T) {
	t.Parallel()
	Run(t, func(*testing.T) Harness {
		b := &broker{}
		m := mine{func(ctx context.Context, e *event.Event) error { return b.write(ctx, []event.Event{*e})[0] }}
		return harness(b, whole{m.Publish, route, b.reach})
	})
}

// TestRunRefuses: each of these publishers breaks one sentence of relay.Publisher, and a check says so.
func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		check string
		make  func(b *broker) publish
	}{
		"it passes a refused event": {"nothing of its key passes a refused event", func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) (verdicts []error) {
				for i := range events {
					verdicts = append(verdicts, b.write(ctx, events[i:i+1])...)
				}
				return verdicts
			}
		}},
		"its refusals are errors": {"nothing of its key passes a refused event", func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) []error {
				verdicts := b.write(ctx, events)
				for i := range verdicts {
					if _, ok := errors.AsType[*outcome.Refusal](verdicts[i]); ok {
						verdicts[i] = errors.New("refused")
					}
				}
				return verdicts
			}
		}},
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
			fails(t, c.check, harness(b, whole{c.make(b), route, b.reach}))
		})
	}
	turn := int32(0)
	b := &broker{}
	for name, w := range map[string]whole{
		"a key has one route":       {b.write, func(*event.Event) int32 { turn++; return turn % 3 }, b.reach},
		"an outage is out of reach": {b.write, route, func(context.Context) error { return nil }},
	} {
		fails(t, name, harness(b, w))
	}
}

// fails runs a check, which must find something.
func fails(t *testing.T, name string, h Harness) {
	t.Helper()
	for _, check := range checks {
		if check.name == name {
			if err := check.run(t.Context(), &h); err == nil || errors.Is(err, errSkip) {
				t.Errorf("%s: the check passes: %v", name, err)
			} else {
				t.Log(err)
			}
			return
		}
	}
	t.Errorf("there is no check %q", name)
}
