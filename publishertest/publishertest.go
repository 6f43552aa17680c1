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
	"maps"
	"reflect"
	"slices"
	"strings"
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
	// Lose makes the next write at the broker one without an answer: it is carried out, if so told, or is lost too. Nil
	// skips the check of an unknown outcome.
	Lose func(written bool)
}

// Rules of relay.Publisher, in its words.
var (
	errVerdicts  = errors.New("publish returns one verdict per event, in a slice of the same length")
	errAcked     = errors.New("nil means acked: the event is durable, as it was given")
	errRefusal   = errors.New("an outcome.Refusal means certainly refused, by an answer")
	errUnsent    = errors.New("after outcome.Retryable this call did not send the event")
	errUnknown   = errors.New("without an answer the outcome is unknown: the verdict is any other error")
	errOrder     = errors.New("events come in the order in which they must be written")
	errPassed    = errors.New("no event is acked after one of its key that is not")
	errEnd       = errors.New("when ctx ends it must return, after its requests in flight, and must send nothing new")
	errUntouched = errors.New("it must neither change the events nor keep the slice: the next claim overwrites it")
)

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
	{"without an answer nothing is certain", unanswered},
	{"a key has one route", routed},
	{"an outage is out of reach", reached},
}

const (
	limit    = 2 * time.Minute  // of a check
	outage   = 10 * time.Second // for which a publisher may try again by itself
	inFlight = time.Minute      // after its context has ended
)

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
		if _, err := h.publish(ctx, events); err != nil {
			return err
		}
	}
	return nil
}

// ordered: events of a key are first seen in order, over several calls, small and large ones. Nothing but the slice
// tells the order.
func ordered(ctx context.Context, h *Harness) error {
	events := h.events(1200, 5)
	for i := range len(events) / 2 {
		events[i].ID, events[len(events)-1-i].ID = events[len(events)-1-i].ID, events[i].ID
	}
	for call := range slices.Chunk(events[:200], 40) {
		if err := h.whole(ctx, call); err != nil {
			return err
		}
	}
	for call := range slices.Chunk(events[200:], 500) {
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

// returned: the caller writes over the events once Publish has returned, and the broker has them as they were.
func returned(ctx context.Context, h *Harness) error {
	events := h.events(50, 3)
	given := slices.Clone(events)
	for i := range given {
		given[i].Payload = bytes.Clone(given[i].Payload)
	}
	verdicts, err := h.call(ctx, given)
	if err != nil {
		return err
	}
	for i := range given {
		copy(given[i].Payload, "overwritten")
		given[i] = event.Event{}
	}
	if err := h.whole(ctx, h.events(1, 1)); err != nil { // the publisher has sent all that it kept, by now
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
	verdicts, err := h.call(over, late)
	if err != nil {
		return err
	}
	if err := h.whole(ctx, h.events(20, 3)); err != nil {
		return err
	}
	found, err := h.found()
	if err != nil {
		return err
	}
	for i := range late {
		if _, ok := found[late[i].ID]; ok || verdicts[i] == nil {
			return fmt.Errorf("%w: event %d of a call whose context had ended is acked: %v, and in the log: %v", errEnd,
				i, verdicts[i] == nil, ok)
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
	short, cancel := context.WithTimeout(ctx, outage)
	verdicts, err := h.call(short, events)
	cancel()
	mend()
	if err != nil {
		return err
	}
	for i, err := range verdicts {
		if err == nil {
			return fmt.Errorf("%w: event %d is acked, and there was no broker", errAcked, i)
		}
	}
	if err := h.uncertain(events, verdicts); err != nil {
		return err
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
	verdicts, err := h.publish(ctx, events)
	if err != nil {
		return err
	}
	switch r, ok := errors.AsType[*outcome.Refusal](verdicts[bad]); {
	case verdicts[bad] == nil:
		return fmt.Errorf("%w: an event that the broker refuses is acked", errAcked)
	case !ok:
		return fmt.Errorf("%w: that of an event that the broker refuses is none: %w", errRefusal, verdicts[bad])
	case r.Err == nil:
		return fmt.Errorf("%w: it has no reason", errRefusal)
	}
	found, err := h.found()
	if err != nil {
		return err
	}
	for i := bad; i < len(events); i++ {
		if _, ok := found[events[i].ID]; events[i].Key == events[bad].Key && (ok || verdicts[i] == nil) {
			return fmt.Errorf("%w: event %d is behind event %d of its key, which is refused, and it is acked: %v, and "+
				"in the log: %v", errPassed, i, bad, verdicts[i] == nil, ok)
		}
	}
	return nil
}

// unanswered: of a write without an answer no verdict claims to know the outcome, whether it was carried out or not.
func unanswered(ctx context.Context, h *Harness) error {
	if h.Lose == nil {
		return fmt.Errorf("%w: the harness has no Lose", errSkip)
	}
	for _, written := range []bool{true, false} {
		before, events := h.events(1, 1), h.events(20, 3)
		if err := h.whole(ctx, before); err != nil {
			return err
		}
		h.Lose(written)
		verdicts, err := h.publish(ctx, events)
		if err != nil {
			return err
		}
		if err := h.uncertain(events, verdicts); err != nil {
			return err
		}
		if err := h.whole(ctx, events); err != nil {
			return err
		}
		if err := h.inOrder(events); err != nil {
			return err
		}
	}
	return nil
}

// uncertain demands verdicts of a first attempt that no broker refused: no event is refused, and an event that was not
// sent is not in the log.
func (h *Harness) uncertain(events []event.Event, verdicts []error) error {
	found, err := h.found()
	if err != nil {
		return err
	}
	for i, err := range verdicts {
		if _, refused := errors.AsType[*outcome.Refusal](err); refused {
			return fmt.Errorf("%w: event %d is refused: %w", errUnknown, i, err)
		}
		_, written := found[events[i].ID]
		if class, _ := outcome.Of(err); written && class == outcome.ClassRetryable {
			return fmt.Errorf("%w: event %d is in the log: %w", errUnsent, i, err)
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

// ahead is how far the database's clock is ahead of this machine's.
const ahead = 10 * time.Minute

// events makes n events with so many keys, in turn. Each call has other keys.
func (h *Harness) events(n, keys int) []event.Event {
	series := uuid.NewString()
	events := make([]event.Event, n)
	for i := range events {
		events[i] = event.Event{
			ID: event.NewID(), Source: "publishertest", Tenant: "tenant", Topic: h.Topic,
			Key: fmt.Sprint(series, i%keys), Type: fmt.Sprint("publishertest", i%7), ContentType: "text/plain",
			Headers: map[string]string{"traceparent": series, "empty": ""},
			Payload: fmt.Appendf(nil, "%s payload %d", series, i),
			Time:    time.UnixMicro(int64(1e15) - int64(i)).UTC(),
			Position: event.Position{
				Lane: int16(i % keys), Epoch: "publishertest.1", Seq: int64(i), MaybePublished: i%2 == 0,
				Timestamp: time.Now().Add(ahead).Truncate(time.Millisecond).UTC(),
			},
		}
	}
	return events
}

// publish calls Publish and compares the verdicts with the log.
func (h *Harness) publish(ctx context.Context, events []event.Event) ([]error, error) {
	verdicts, err := h.call(ctx, events)
	if err == nil {
		err = h.see(events, verdicts)
	}
	return verdicts, err
}

// call calls Publish. It fails if that breaks a rule whatever the verdicts say.
func (h *Harness) call(ctx context.Context, events []event.Event) ([]error, error) {
	before := slices.Clone(events)
	for i := range before {
		before[i].Payload, before[i].Headers = bytes.Clone(events[i].Payload), maps.Clone(events[i].Headers)
	}
	later, stop := sleep.Outlive(ctx, inFlight)
	defer stop()
	returned := make(chan []error, 1)
	go func() { returned <- h.Publisher.Publish(ctx, events) }()
	select {
	case verdicts := <-returned:
		switch {
		case len(verdicts) != len(events):
			return nil, fmt.Errorf("%w: %d for %d events", errVerdicts, len(verdicts), len(events))
		case !reflect.DeepEqual(events, before):
			return nil, fmt.Errorf("%w: they are changed", errUntouched)
		}
		return verdicts, nil
	case <-later.Done():
		return nil, fmt.Errorf("%w: %v after it has ended Publish runs", errEnd, inFlight)
	}
}

// whole publishes events until each is acked, as a relay does: what has no ack is sent again, in order.
func (h *Harness) whole(ctx context.Context, events []event.Event) error {
	for rest := slices.Clone(events); ; {
		verdicts, err := h.publish(ctx, rest)
		if err != nil {
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

// see compares verdicts with the log: acked events are there, as they were, and all before them of their keys are
// acked.
func (h *Harness) see(events []event.Event, verdicts []error) error {
	found, err := h.found()
	if err != nil {
		return err
	}
	unacked := map[string]int{} // the first, by key
	for i := range events {
		want := &events[i]
		got, ok := found[want.ID]
		first, behind := unacked[want.Key]
		lost := lost(&got, want)
		switch {
		case verdicts[i] != nil:
			if !behind {
				unacked[want.Key] = i
			}
		case !ok:
			return fmt.Errorf("%w: event %d is acked, and not in the log", errAcked, i)
		case len(lost) > 0:
			return fmt.Errorf("%w: event %d is in the log, and not its %s", errAcked, i, strings.Join(lost, ", "))
		case behind:
			return fmt.Errorf("%w: event %d is, and event %d is not: %w", errPassed, i, first, verdicts[first])
		}
	}
	return nil
}

// lost names the parts of an event that the log does not have. A record may have further headers, and a later time or
// none.
func lost(got, want *event.Event) (names []string) {
	headers := maps.Clone(got.Headers)
	maps.DeleteFunc(headers, func(name, _ string) bool { _, given := want.Headers[name]; return !given })
	at := got.Position
	at.Partition, at.Offset, at.Absent, at.Timestamp = 0, 0, 0, want.Position.Timestamp
	for name, same := range map[string]bool{
		"topic": got.Topic == want.Topic, "key": got.Key == want.Key, "type": got.Type == want.Type,
		"source": got.Source == want.Source, "tenant": got.Tenant == want.Tenant, "time": got.Time.Equal(want.Time),
		"content type": got.ContentType == want.ContentType, "payload": bytes.Equal(got.Payload, want.Payload),
		"headers":   maps.Equal(headers, want.Headers),
		"position":  at == want.Position,
		"timestamp": got.Position.Timestamp.IsZero() || !got.Position.Timestamp.Before(want.Position.Timestamp),
	} {
		if !same {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
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
				return fmt.Errorf("%w: event %d of %d of key %s is not first seen in its turn", errOrder, i, len(ids),
					key)
			}
		}
	}
	return nil
}
