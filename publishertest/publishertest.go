// Package publishertest has the conformance tests of a relay's publisher, also for your own: what relay.Publisher
// demands, on the broker that it is for.
//
//	func TestPublisher(t *testing.T) {
//		publishertest.Run(t, func(t *testing.T) publishertest.Harness {
//			return publishertest.Harness{Publisher: ..., Topic: ..., Log: func() ([]event.Event, error) { ... }}
//		})
//	}
package publishertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/outcome"
)

// Harness is a publisher under test.
type Harness struct {
	// Publisher is a relay.Publisher. If it is a relay.Router or a relay.Reacher too, that is checked.
	Publisher interface {
		Publish(ctx context.Context, events []event.Event) []error
	}
	// Topic gets the events. It is empty.
	Topic string
	// Log returns what a consumer of the topic can read at this moment. The events of a key are in its order.
	Log func() ([]event.Event, error)
	// Break makes the broker unreachable until mend is called. Nil skips the check of an outage.
	Break func() (mend func())
	// Refuse changes an event into one that the broker refuses for certain, such as one that is too large. Nil skips
	// the check of a refusal.
	Refuse func(e *event.Event)
}

var checks = []struct {
	name string
	run  func(ctx context.Context, h *Harness) error
}{
	{"an ack is durable", durable},
	{"a key keeps its order", ordered},
	{"calls beside each other", beside},
	{"events are the caller's again", returned},
	{"an ended context sends nothing", ended},
	{"an outage acks nothing", broken},
	{"nothing of its key passes a refused event", refused},
	{"a key has one route", routed},
	{"an outage is out of reach", reached},
}

// limit bounds a check.
const limit = 2 * time.Minute

// Run runs each check as a subtest, with a Harness of its own.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			h := open(t)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			err := c.run(ctx, &h)
			if errors.Is(err, errSkip) {
				t.Skip(err)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

var errSkip = errors.New("there is nothing to check")

// durable: an event whose verdict is nil can be read at once, as it was.
func durable(ctx context.Context, h *Harness) error {
	for n := range 20 {
		events := h.events(n+1, 3)
		if err := h.see(events, h.publish(ctx, events)); err != nil {
			return err
		}
	}
	return nil
}

// ordered: events of a key are first seen in order, over several calls.
func ordered(ctx context.Context, h *Harness) error {
	events := h.events(200, 5)
	for call := range slices.Chunk(events, 40) {
		if err := h.whole(ctx, call); err != nil {
			return err
		}
	}
	return h.inOrder(events)
}

// beside: concurrent calls with different keys.
func beside(ctx context.Context, h *Harness) error {
	const callers = 8
	var calls sync.WaitGroup
	all, errs := make([][]event.Event, callers), make([]error, callers)
	for i := range callers {
		all[i] = h.events(50, 2)
		calls.Go(func() {
			for call := range slices.Chunk(all[i], 10) {
				errs[i] = errors.Join(errs[i], h.whole(ctx, call))
			}
		})
	}
	calls.Wait()
	return errors.Join(append(errs, h.inOrder(slices.Concat(all...)))...)
}

// returned: what is written over the events after Publish has returned does not reach the broker.
func returned(ctx context.Context, h *Harness) error {
	events := h.events(50, 3)
	given := slices.Clone(events)
	for i := range given {
		given[i].Payload = bytes.Clone(given[i].Payload)
	}
	verdicts := h.publish(ctx, given)
	for i := range given {
		copy(given[i].Payload, "overwritten")
		given[i] = event.Event{}
	}
	if err := h.whole(ctx, h.events(1, 1)); err != nil { // what was still to be sent is sent by now
		return err
	}
	return h.see(events, verdicts)
}

// ended: a call whose context has ended sends nothing new.
func ended(ctx context.Context, h *Harness) error {
	if err := h.whole(ctx, h.events(1, 1)); err != nil {
		return err
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	late := h.events(20, 3)
	verdicts := h.publish(over, late)
	if err := h.whole(ctx, h.events(20, 3)); err != nil {
		return err
	}
	found, err := h.found()
	if err != nil {
		return err
	}
	for i := range late {
		if _, ok := found[late[i].ID]; ok || verdicts[i] == nil {
			return fmt.Errorf("event %d of a call whose context had ended is acked: %v, and in the log: %v", i,
				verdicts[i] == nil, ok)
		}
	}
	return nil
}

// broken: without a broker nothing is acked; afterwards the events can be sent again, in their order.
func broken(ctx context.Context, h *Harness) error {
	if h.Break == nil {
		return fmt.Errorf("%w: the harness has no Break", errSkip)
	}
	before, events := h.events(20, 3), h.events(20, 3)
	if err := h.whole(ctx, before); err != nil {
		return err
	}
	mend := h.Break()
	verdicts := h.publish(ctx, events)
	mend()
	for i, err := range verdicts {
		if err == nil {
			return fmt.Errorf("event %d is acked, and there was no broker", i)
		}
		if _, refused := errors.AsType[*outcome.Refusal](err); refused {
			return fmt.Errorf("event %d is refused, and there was no broker: %w", i, err)
		}
	}
	if err := h.whole(ctx, events); err != nil {
		return err
	}
	return h.inOrder(slices.Concat(before, events))
}

// refused: a refusal says so, and no later event of its key is acked or written: it may yet be released, before them.
func refused(ctx context.Context, h *Harness) error {
	if h.Refuse == nil {
		return fmt.Errorf("%w: the harness has no Refuse", errSkip)
	}
	events := h.events(20, 2)
	const bad = 10
	h.Refuse(&events[bad])
	verdicts := h.publish(ctx, events)
	if err := h.see(events, verdicts); err != nil {
		return err
	}
	switch r, ok := errors.AsType[*outcome.Refusal](verdicts[bad]); {
	case verdicts[bad] == nil:
		return errors.New("an event that the broker refuses is acked")
	case !ok:
		return fmt.Errorf("the verdict of an event that the broker refuses is no outcome.Refusal: %w", verdicts[bad])
	case r.Err == nil:
		return errors.New("a refusal has no reason")
	}
	found, err := h.found()
	if err != nil {
		return err
	}
	for i := bad; i < len(events); i++ {
		if _, ok := found[events[i].ID]; events[i].Key == events[bad].Key && (ok || verdicts[i] == nil) {
			return fmt.Errorf("event %d is behind event %d of its key, which is refused, and it is acked: %v, and in "+
				"the log: %v", i, bad, verdicts[i] == nil, ok)
		}
	}
	return nil
}

// routed: the events of a key have one partition, each time.
func routed(ctx context.Context, h *Harness) error {
	router, ok := h.Publisher.(interface {
		Route(ctx context.Context, topic string) (func(e *event.Event) int32, error)
	})
	if !ok {
		return fmt.Errorf("%w: the publisher is no relay.Router", errSkip)
	}
	events := h.events(40, 5)
	if err := h.whole(ctx, events); err != nil {
		return err
	}
	at := map[string]int32{}
	for range 2 {
		partition, err := router.Route(ctx, h.Topic)
		if err != nil {
			return fmt.Errorf("a topic with events has no route: %w", err)
		}
		for i := range events {
			p := partition(&events[i])
			if before, ok := at[events[i].Key]; p < 0 || ok && p != before {
				return fmt.Errorf("event %d goes to partition %d, and its key to %d", i, p, before)
			}
			at[events[i].Key] = p
		}
	}
	return nil
}

// reached: a broker is in reach unless there is an outage, and asking for it ends with the context.
func reached(ctx context.Context, h *Harness) error {
	reacher, ok := h.Publisher.(interface {
		Reach(ctx context.Context) error
	})
	if !ok {
		return fmt.Errorf("%w: the publisher is no relay.Reacher", errSkip)
	}
	if err := reacher.Reach(ctx); err != nil {
		return fmt.Errorf("the broker is out of reach: %w", err)
	}
	if h.Break == nil {
		return nil
	}
	mend := h.Break()
	short, cancel := context.WithTimeout(ctx, time.Second)
	err := reacher.Reach(short)
	cancel()
	mend()
	if err == nil {
		return errors.New("a broker is in reach, and there was none")
	}
	if ctx.Err() != nil {
		return fmt.Errorf("the context of Reach ended, and Reach did not: %w", ctx.Err())
	}
	for reacher.Reach(ctx) != nil {
		if err := sleep.For(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("the broker is back, and out of reach: %w", err)
		}
	}
	return nil
}

// events makes n events of so many keys, in turn. Each call has keys of its own.
func (h *Harness) events(n, keys int) []event.Event {
	series := uuid.NewString()
	events := make([]event.Event, n)
	for i := range events {
		events[i] = event.Event{
			ID: event.NewID(), Topic: h.Topic, Key: fmt.Sprint(series, i%keys), Type: "publishertest",
			Payload:  fmt.Appendf(nil, "%s payload %d", series, i),
			Position: event.Position{Lane: int16(i % keys), Epoch: "publishertest.1", Seq: int64(i)},
		}
	}
	return events
}

// publish calls Publish, and demands a verdict for each event.
func (h *Harness) publish(ctx context.Context, events []event.Event) []error {
	verdicts := h.Publisher.Publish(ctx, events)
	for len(verdicts) < len(events) {
		verdicts = append(verdicts, fmt.Errorf("%w: %d for %d events", errVerdicts, len(verdicts), len(events)))
	}
	return verdicts
}

var errVerdicts = errors.New("there are fewer verdicts than events")

// whole publishes events until each is acked, as a relay does: what has no ack is sent again, in order.
func (h *Harness) whole(ctx context.Context, events []event.Event) error {
	for rest := slices.Clone(events); ; {
		verdicts := h.publish(ctx, rest)
		if err := h.see(rest, verdicts); err != nil {
			return err
		}
		var left []event.Event
		for i := range rest {
			if verdicts[i] != nil {
				left = append(left, rest[i])
			}
		}
		if len(left) == 0 {
			return nil
		}
		rest = left
		if err := sleep.For(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%d events have no ack: %w", len(rest), errors.Join(verdicts...))
		}
	}
}

// see compares verdicts with the log: acked events are there, as they were.
func (h *Harness) see(events []event.Event, verdicts []error) error {
	found, err := h.found()
	if err != nil {
		return err
	}
	for i := range events {
		want := &events[i]
		got, ok := found[want.ID]
		switch err := verdicts[i]; {
		case errors.Is(err, errVerdicts):
			return err
		case err != nil:
		case !ok:
			return fmt.Errorf("event %d is acked, and not in the log", i)
		case got.Topic != want.Topic || got.Key != want.Key || got.Type != want.Type ||
			!bytes.Equal(got.Payload, want.Payload):
			return fmt.Errorf("event %d is in the log as %+v, want %+v", i, got, *want)
		}
	}
	return nil
}

func (h *Harness) found() (map[uuid.UUID]event.Event, error) {
	log, err := h.Log()
	found := map[uuid.UUID]event.Event{}
	for _, e := range log {
		found[e.ID] = e
	}
	return found, err
}

// inOrder demands that the first occurrences of each key's events are in order.
func (h *Harness) inOrder(events []event.Event) error {
	log, err := h.Log()
	if err != nil {
		return err
	}
	want, got, seen := map[string][]uuid.UUID{}, map[string][]uuid.UUID{}, map[uuid.UUID]bool{}
	for i := range events {
		want[events[i].Key] = append(want[events[i].Key], events[i].ID)
	}
	for i := range log {
		if e := &log[i]; want[e.Key] != nil && !seen[e.ID] {
			seen[e.ID] = true
			got[e.Key] = append(got[e.Key], e.ID)
		}
	}
	for key, ids := range want {
		for i, id := range ids {
			if i >= len(got[key]) || got[key][i] != id {
				return fmt.Errorf("event %d of %d of key %s is not first seen in its turn", i, len(ids), key)
			}
		}
	}
	return nil
}
