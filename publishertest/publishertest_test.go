package publishertest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
)

// broker takes events in memory.
type broker struct {
	mu               sync.Mutex
	log              []event.Event
	down             bool
	lost, unanswered bool // the next write, or its answer
}

var (
	errDown    = errors.New("no broker")
	errRefused = errors.New("the broker does not like it")
	errTimeout = errors.New("timed out")
)

func (b *broker) write(ctx context.Context, events []event.Event) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	verdicts, failed := make([]error, len(events)), map[string]bool{}
	if b.lost && len(events) > 0 {
		b.lost = false
		return slices.Repeat([]error{errTimeout}, len(events))
	}
	if b.unanswered && len(events) > 0 {
		b.unanswered = false
		b.log = append(b.log, events...)
		return slices.Repeat([]error{errTimeout}, len(events))
	}
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
		Lose: func(written bool) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.lost, b.unanswered = !written, written
		},
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

// TestRules: the rules are sentences of the contract.
func TestRules(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../relay/publisher.go")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("\n//", "", "[", "", "]", "").Replace(strings.ToLower(string(source)))
	for _, rule := range []error{
		errVerdicts, errAcked, errRefusal, errUnsent, errUnknown, errOrder, errPassed, errEnd, errUntouched,
	} {
		if !strings.Contains(text, strings.ToLower(rule.Error())) {
			t.Errorf("relay.Publisher does not say: %v", rule)
		}
	}
}

// each publishes the events one by one, whatever became of those before.
func (b *broker) each(ctx context.Context, events []event.Event) (verdicts []error) {
	for i := range events {
		verdicts = append(verdicts, b.write(ctx, events[i:i+1])...)
	}
	return verdicts
}

// telling is a publisher that changes the verdicts of one that is right.
func (b *broker) telling(change func(verdict error) error) publish {
	return func(ctx context.Context, events []event.Event) []error {
		verdicts := b.write(ctx, events)
		for i := range verdicts {
			verdicts[i] = change(verdicts[i])
		}
		return verdicts
	}
}

// writing is a publisher that writes other events than it is given.
func (b *broker) writing(change func(e *event.Event)) publish {
	return func(ctx context.Context, events []event.Event) []error {
		events = slices.Clone(events)
		for i := range events {
			change(&events[i])
		}
		return b.write(ctx, events)
	}
}

// TestRunRefuses: each of these publishers breaks one sentence of relay.Publisher, and a check says which.
func TestRunRefuses(t *testing.T) {
	t.Parallel()
	const durable, outage = "an ack is durable", "an outage acks nothing"
	const refusal, unanswered = "nothing of its key passes a refused event", "without an answer nothing is certain"
	for name, c := range map[string]struct {
		check string
		rule  error
		make  func(b *broker) publish
	}{
		"it passes a refused event":                {refusal, errPassed, func(b *broker) publish { return b.each }},
		"it passes an event that was not answered": {unanswered, errPassed, func(b *broker) publish { return b.each }},
		"its refusals are errors": {refusal, errRefusal, func(b *broker) publish {
			return b.telling(func(err error) error {
				if _, ok := errors.AsType[*outcome.Refusal](err); ok {
					return errors.New("refused")
				}
				return err
			})
		}},
		"it acks what is lost": {unanswered, errAcked, func(b *broker) publish {
			return b.telling(func(err error) error {
				if errors.Is(err, errTimeout) {
					return nil
				}
				return err
			})
		}},
		"it refuses what was not answered": {unanswered, errUnknown, func(b *broker) publish {
			return b.telling(func(err error) error {
				if errors.Is(err, errTimeout) {
					return &outcome.Refusal{Err: err}
				}
				return err
			})
		}},
		"what was not answered was not sent": {unanswered, errUnsent, func(b *broker) publish {
			return b.telling(outcome.Retryable)
		}},
		"asynchronous: it acks what it sends later": {durable, errAcked, func(b *broker) publish {
			var later []event.Event
			return func(ctx context.Context, events []event.Event) []error {
				b.write(ctx, later)
				later = slices.Clone(events)
				return make([]error, len(events))
			}
		}},
		"it acks without a broker": {outage, errAcked, func(b *broker) publish {
			return b.telling(func(error) error { return nil })
		}},
		"it keeps the slice": {"events are the caller's again", errAcked, func(b *broker) publish {
			var kept []event.Event
			return func(ctx context.Context, events []event.Event) []error {
				b.write(ctx, kept)
				kept = events
				return make([]error, len(events))
			}
		}},
		"it sorts": {"a key keeps its order", errOrder, func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) []error {
				events = slices.Clone(events)
				slices.SortFunc(events, func(x, y event.Event) int { return bytes.Compare(x.ID[:], y.ID[:]) })
				return b.write(ctx, events)
			}
		}},
		"it divides large batches": {"a key keeps its order", errOrder, func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) []error {
				half := len(events) / 2
				if len(events) < 100 {
					half = 0
				}
				later := b.write(ctx, events[half:])
				return append(b.write(ctx, events[:half]), later...)
			}
		}},
		"it sorts in place": {durable, errUntouched, func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) []error {
				slices.Reverse(events)
				return b.write(ctx, events)
			}
		}},
		"it drops headers": {durable, errAcked, func(b *broker) publish {
			return b.writing(func(e *event.Event) { e.Headers = nil })
		}},
		"it drops the key": {durable, errAcked, func(b *broker) publish {
			return b.writing(func(e *event.Event) { e.Key = "" })
		}},
		"it drops the number": {durable, errAcked, func(b *broker) publish {
			return b.writing(func(e *event.Event) { e.Position.Seq = 0 })
		}},
		"its time is the present": {durable, errAcked, func(b *broker) publish {
			return b.writing(func(e *event.Event) { e.Time = time.Now() })
		}},
		"its records have another clock's time": {durable, errAcked, func(b *broker) publish {
			return b.writing(func(e *event.Event) { e.Position.Timestamp = time.Now() })
		}},
		"it goes on": {"an ended context sends nothing", errEnd, func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) []error {
				return b.write(context.WithoutCancel(ctx), events)
			}
		}},
		"it tries until the broker is back": {outage, errEnd, func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) []error {
				for b.reach(ctx) != nil {
					<-time.After(time.Second)
				}
				return b.write(ctx, events)
			}
		}},
		"it stops at the first error": {outage, errVerdicts, func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) []error {
				verdicts := b.write(ctx, events)
				return verdicts[:1+slices.IndexFunc(verdicts, func(err error) bool { return err == nil })]
			}
		}},
		"it says more": {durable, errVerdicts, func(b *broker) publish {
			return func(ctx context.Context, events []event.Event) []error { return append(b.write(ctx, events), nil) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &broker{}
				fails(t, c.check, c.rule, harness(b, whole{c.make(b), route, b.reach}))
				<-time.After(inFlight) // until calls have ended
			})
		})
	}
	turn := int32(0)
	b := &broker{}
	for name, w := range map[string]whole{
		"a key has one route":       {b.write, func(*event.Event) int32 { turn++; return turn % 3 }, b.reach},
		"an outage is out of reach": {b.write, route, func(context.Context) error { return nil }},
	} {
		fails(t, name, nil, harness(b, w))
	}
}

// fails runs a check, which must find that a rule is broken; nil: something else.
func fails(t *testing.T, name string, rule error, h Harness) {
	t.Helper()
	for _, check := range checks {
		if check.name == name {
			err := check.run(t.Context(), &h)
			if err == nil || errors.Is(err, errSkip) || rule != nil && !errors.Is(err, rule) {
				t.Errorf("%s: the check says: %v", name, err)
			} else {
				t.Log(err)
			}
			return
		}
	}
	t.Errorf("there is no check %q", name)
}
