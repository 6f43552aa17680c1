package watermill_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/watermill"
)

// broker is a message.Publisher that calls do for each message.
type broker struct {
	mu   sync.Mutex
	sent []*message.Message
	do   func(m *message.Message) error
}

func (b *broker) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		if b.do != nil {
			if err := b.do(m); err != nil {
				return err
			}
		}
		b.mu.Lock()
		b.sent = append(b.sent, m)
		b.mu.Unlock()
	}
	return nil
}

func (b *broker) Close() error { return nil }

// payloads returns the sent payloads with the prefix, in order.
func (b *broker) payloads(prefix string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for _, m := range b.sent {
		if strings.HasPrefix(string(m.Payload), prefix) {
			all = append(all, string(m.Payload))
		}
	}
	return strings.Join(all, " ")
}

func newPublisher(t testing.TB, b message.Publisher, cfg watermill.PublisherConfig) *watermill.Publisher {
	t.Helper()
	p, err := watermill.NewPublisher(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// laneEvents returns n events of each lane, in turn; the payload is lane/index.
func laneEvents(lanes, n int) (events []event.Event) {
	for i := range n {
		for l := range lanes {
			events = append(events, event.Event{
				ID: event.NewID(), Topic: "t", Type: "T", Key: fmt.Sprint("k", l),
				Payload: fmt.Appendf(nil, "%d/%d", l, i), Position: event.Position{
					Lane: int16(l), Epoch: "x.1",
					Seq: int64(i),
				},
			})
		}
	}
	return events
}

type verdicts []error

func (v verdicts) count(matches func(error) bool) (n int) {
	for _, err := range v {
		if matches(err) {
			n++
		}
	}
	return n
}

func acked(err error) bool { return err == nil }

func unsent(err error) bool {
	class, _ := outcome.Of(err)
	return class == outcome.ClassRetryable
}

func refused(scope string) func(error) bool {
	return func(err error) bool {
		var r *outcome.Refusal
		return errors.As(err, &r) && r.Topic == (scope == "topic")
	}
}

func unknown(err error) bool {
	return err != nil && !unsent(err) && !refused("record")(err) && !refused("topic")(err)
}

// TestVerdicts: a message that failed is unknown, and no later one of its lane is sent; other lanes continue.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	b := &broker{do: func(m *message.Message) error {
		if string(m.Payload) == "1/2" {
			return errors.New("no answer")
		}
		return nil
	}}
	p := newPublisher(t, b, watermill.PublisherConfig{})
	events := laneEvents(3, 5)
	v := verdicts(p.Publish(t.Context(), events))
	if len(v) != 15 || v.count(acked) != 12 || v.count(unknown) != 1 || v.count(unsent) != 2 || !unknown(v[2*3+1]) {
		t.Fatal(v)
	}
	if got := b.payloads("1/"); got != "1/0 1/1" {
		t.Errorf("sent %q", got)
	}
	if got := b.payloads("2/"); got != "2/0 2/1 2/2 2/3 2/4" {
		t.Errorf("sent %q", got)
	}
	// A relay sends the rest again.
	b.do = nil
	var rest []event.Event
	for i, err := range v {
		if err != nil {
			rest = append(rest, events[i])
		}
	}
	if v = p.Publish(t.Context(), rest); v.count(acked) != 3 || b.payloads("1/") != "1/0 1/1 1/2 1/3 1/4" {
		t.Error(v, b.payloads("1/"))
	}
}

// TestLanesAreParallel: messages of different lanes are in flight together, those of one lane never.
func TestLanesAreParallel(t *testing.T) {
	t.Parallel()
	const lanes = 4
	var mu sync.Mutex
	inFlight, together := map[string]bool{}, make(chan struct{})
	b := &broker{do: func(m *message.Message) error {
		l, _, _ := strings.Cut(string(m.Payload), "/")
		mu.Lock()
		if inFlight[l] {
			t.Errorf("lane %s has two messages in flight", l)
		}
		inFlight[l] = true
		if len(inFlight) == lanes && string(m.Payload) != "" {
			select {
			case <-together:
			default:
				close(together)
			}
		}
		mu.Unlock()
		<-together
		mu.Lock()
		delete(inFlight, l)
		mu.Unlock()
		return nil
	}}
	if v := verdicts(newPublisher(t, b, watermill.PublisherConfig{}).Publish(t.Context(), laneEvents(lanes,
		50))); v.count(
		acked) != lanes*50 {
		t.Fatal(v)
	}
}

// TestRefusals: PublisherConfig.Refused alone decides. After a refused message its lane sends no more, after a refused
// topic no lane does.
func TestRefusals(t *testing.T) {
	t.Parallel()
	tooLarge, missing := errors.New("too large"), errors.New("no such topic")
	for _, c := range []struct {
		err     error
		want    func(error) bool
		notSent int
	}{{tooLarge, refused("record"), 3}, {missing, refused("topic"), 3}, {errors.New("anything else"), unknown, 3}} {
		b := &broker{do: func(m *message.Message) error {
			if string(m.Payload) == "0/1" {
				return fmt.Errorf("wrapped: %w", c.err)
			}
			return nil
		}}
		p := newPublisher(t, b, watermill.PublisherConfig{Refused: func(topic string, err error) watermill.Meaning {
			switch {
			case topic != "t":
				t.Errorf("topic %q", topic)
			case errors.Is(err, tooLarge):
				return watermill.RecordRefused
			case errors.Is(err, missing):
				return watermill.TopicRefused
			}
			return watermill.NotRefused
		}})
		v := verdicts(p.Publish(t.Context(), laneEvents(1, 5)))
		if !c.want(v[1]) || v.count(acked) != 1 || v.count(unsent) != c.notSent || !errors.Is(v[1], c.err) {
			t.Errorf("%v: %v", c.err, v)
		}
	}
	b := &broker{do: func(*message.Message) error { return missing }}
	p := newPublisher(t, b, watermill.PublisherConfig{Parallel: 1, Refused: func(string, error) watermill.Meaning {
		return watermill.TopicRefused
	}})
	if v := verdicts(p.Publish(t.Context(), laneEvents(3, 2))); v.count(refused("topic")) != 1 ||
		v.count(unsent) != 5 {
		t.Error(v)
	}
}

// TestBatchRefusedForOneMessage: if a publisher refuses a batch for one of its messages, only that message is refused,
// because each is sent again alone.
func TestBatchRefusedForOneMessage(t *testing.T) {
	t.Parallel()
	tooLarge := errors.New("too large")
	var mu sync.Mutex
	var inFlight int
	together := make(chan struct{})
	b := &broker{do: func(m *message.Message) error {
		mu.Lock()
		inFlight++
		batched := inFlight > 1
		if inFlight == 3 {
			close(together)
		}
		mu.Unlock()
		defer func() { mu.Lock(); inFlight--; mu.Unlock() }()
		<-together
		if batched || string(m.Payload) == "1/0" {
			return tooLarge
		}
		return nil
	}}
	p := newPublisher(t, b, watermill.PublisherConfig{Refused: func(_ string, err error) watermill.Meaning {
		if errors.Is(err, tooLarge) {
			return watermill.RecordRefused
		}
		return watermill.NotRefused
	}})
	if v := verdicts(p.Publish(t.Context(), laneEvents(3, 1))); !refused("record")(v[1]) || v.count(acked) != 2 {
		t.Error(v)
	}
}

// TestTimeout: the outcome of a message that times out is unknown, and its lane sends nothing until the publisher
// returns.
func TestTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan error)
		ended := make(chan struct{})
		b := &broker{do: func(m *message.Message) error {
			if string(m.Payload) == "0/0" {
				<-m.Context().Done()
				close(ended)
				return <-answer
			}
			return nil
		}}
		p := newPublisher(t, b, watermill.PublisherConfig{Timeout: time.Second})
		events := laneEvents(2, 2)
		v := verdicts(p.Publish(t.Context(), events))
		if !unknown(v[0]) || !unsent(v[2]) || !acked(v[1]) || !acked(v[3]) {
			t.Fatal(v)
		}
		<-ended
		if v = p.Publish(t.Context(), events); !unsent(v[0]) || !unsent(v[2]) || !acked(v[1]) {
			t.Fatal(v)
		}
		answer <- nil
		synctest.Wait()
		b.do = nil
		if v = p.Publish(t.Context(), events); v.count(acked) != 4 || b.payloads("0/") != "0/0 0/0 0/1" {
			t.Fatal(v, b.payloads("0/"))
		}
	})
}

func TestNoMessageAfterEndOfContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	b := &broker{do: func(m *message.Message) error {
		cancel()
		return m.Context().Err() // the message's context goes on
	}}
	v := verdicts(newPublisher(t, b, watermill.PublisherConfig{}).Publish(ctx, laneEvents(1, 3)))
	if !acked(v[0]) || !unsent(v[1]) || !unsent(v[2]) || !errors.Is(v[1], context.Canceled) {
		t.Error(v)
	}
}

func TestPublisherPanics(t *testing.T) {
	t.Parallel()
	b := &broker{do: func(*message.Message) error { panic("secret") }}
	v := newPublisher(t, b, watermill.PublisherConfig{}).Publish(t.Context(), laneEvents(1, 1))
	if !unknown(v[0]) || strings.Contains(v[0].Error(), "secret") {
		t.Error(v)
	}
}

// TestContextOfMessage: a message's context has its event's trace and no value of the relay's context.
func TestContextOfMessage(t *testing.T) {
	t.Parallel()
	type key struct{}
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	b := &broker{}
	events := laneEvents(1, 2)
	events[0].Headers = map[string]string{event.HeaderTraceParent: parent}
	relayCtx := trace.ContextWithSpanContext(context.WithValue(t.Context(), key{}, "secret"),
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: [16]byte{1}, SpanID: [8]byte{1}}))
	if v := verdicts(newPublisher(t, b, watermill.PublisherConfig{}).Publish(relayCtx, events)); v.count(acked) != 2 {
		t.Fatal(v)
	}
	var traces []string
	for _, m := range b.sent {
		if m.Context().Value(key{}) != nil || m.Context().Err() != nil {
			t.Error("the message's context is the relay's, or has ended")
		}
		traces = append(traces, trace.SpanContextFromContext(m.Context()).TraceID().String())
	}
	if want := []string{"4bf92f3577b34da6a3ce929d0e0e4736", trace.TraceID{}.String()}; !slices.Equal(traces, want) ||
		b.sent[0].Metadata["traceparent"] != parent {
		t.Errorf("traces %v, want %v", traces, want)
	}
}
