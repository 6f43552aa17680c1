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
	"github.com/effectonce/effectonce/watermill"
)

// broker is a message.Publisher that does what it is told.
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

// of returns the payloads that were sent and begin so, in order.
func (b *broker) of(prefix string) string {
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

// claim is n events of each of some lanes by turns, as a relay hands them over; the payload is lane and place.
func claim(lanes, n int) (events []event.Event) {
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

func (v verdicts) count(of func(error) bool) (n int) {
	for _, err := range v {
		if of(err) {
			n++
		}
	}
	return n
}

func acked(err error) bool { return err == nil }

func notSent(err error) bool {
	var n interface{ NotSent() bool }
	return errors.As(err, &n) && n.NotSent()
}

func rejected(scope string) func(error) bool {
	return func(err error) bool {
		var r interface {
			Rejected() bool
			Scope() string
		}
		return errors.As(err, &r) && r.Rejected() && r.Scope() == scope
	}
}

func unknown(err error) bool {
	return err != nil && !notSent(err) && !rejected("record")(err) && !rejected("topic")(err)
}

// TestVerdictsAreTrue: what the publisher acked is acked, what it failed is unknown, and nothing behind that was sent.
// Other lanes go on.
func TestVerdictsAreTrue(t *testing.T) {
	t.Parallel()
	b := &broker{do: func(m *message.Message) error {
		if string(m.Payload) == "1/2" {
			return errors.New("no answer")
		}
		return nil
	}}
	p := newPublisher(t, b, watermill.PublisherConfig{})
	events := claim(3, 5)
	v := verdicts(p.Publish(t.Context(), events))
	if len(v) != 15 || v.count(acked) != 12 || v.count(unknown) != 1 || v.count(notSent) != 2 || !unknown(v[2*3+1]) {
		t.Fatal(v)
	}
	if got := b.of("1/"); got != "1/0 1/1" {
		t.Errorf("sent %q", got)
	}
	if got := b.of("2/"); got != "2/0 2/1 2/2 2/3 2/4" {
		t.Errorf("sent %q", got)
	}
	// The same again, as a relay does.
	b.do = nil
	var left []event.Event
	for i, err := range v {
		if err != nil {
			left = append(left, events[i])
		}
	}
	if v = p.Publish(t.Context(), left); v.count(acked) != 3 || b.of("1/") != "1/0 1/1 1/2 1/3 1/4" {
		t.Error(v, b.of("1/"))
	}
}

// TestMessagesOfALaneNeverOverlap, and those of different lanes do.
func TestMessagesOfALaneNeverOverlap(t *testing.T) {
	t.Parallel()
	const lanes = 4
	var mu sync.Mutex
	flying, together := map[string]bool{}, make(chan struct{})
	b := &broker{do: func(m *message.Message) error {
		l, _, _ := strings.Cut(string(m.Payload), "/")
		mu.Lock()
		if flying[l] {
			t.Errorf("lane %s has two messages on their way", l)
		}
		flying[l] = true
		if len(flying) == lanes && string(m.Payload) != "" {
			select {
			case <-together:
			default:
				close(together) // all lanes are on their way at once: none waited for another
			}
		}
		mu.Unlock()
		<-together
		mu.Lock()
		delete(flying, l)
		mu.Unlock()
		return nil
	}}
	if v := verdicts(newPublisher(t, b, watermill.PublisherConfig{}).Publish(t.Context(), claim(lanes, 50))); v.count(
		acked) != lanes*50 {
		t.Fatal(v)
	}
}

// TestRefusals: only what the config calls a refusal is one. Behind it nothing of the lane is sent; a refused topic
// ends all.
func TestRefusals(t *testing.T) {
	t.Parallel()
	tooLarge, missing := errors.New("too large"), errors.New("no such topic")
	for _, c := range []struct {
		err     error
		want    func(error) bool
		unheard int
	}{{tooLarge, rejected("record"), 3}, {missing, rejected("topic"), 3}, {errors.New("anything else"), unknown, 3}} {
		b := &broker{do: func(m *message.Message) error {
			if string(m.Payload) == "0/1" {
				return fmt.Errorf("wrapped: %w", c.err)
			}
			return nil
		}}
		p := newPublisher(t, b, watermill.PublisherConfig{Refused: func(topic string, err error) watermill.Refusal {
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
		v := verdicts(p.Publish(t.Context(), claim(1, 5)))
		if !c.want(v[1]) || v.count(acked) != 1 || v.count(notSent) != c.unheard || !errors.Is(v[1], c.err) {
			t.Errorf("%v: %v", c.err, v)
		}
	}
	b := &broker{do: func(*message.Message) error { return missing }}
	p := newPublisher(t, b, watermill.PublisherConfig{Parallel: 1, Refused: func(string, error) watermill.Refusal {
		return watermill.TopicRefused
	}})
	if v := verdicts(p.Publish(t.Context(), claim(3, 2))); v.count(rejected("topic")) != 1 || v.count(notSent) != 5 {
		t.Error(v)
	}
}

// TestAnInnocentIsNotRefused: a publisher that gathers what is on its way refuses all of it for the sake of one
// message. That one is refused, for it is refused alone as well.
func TestAnInnocentIsNotRefused(t *testing.T) {
	t.Parallel()
	tooLarge := errors.New("too large")
	var mu sync.Mutex
	var flying int
	together := make(chan struct{})
	b := &broker{do: func(m *message.Message) error {
		mu.Lock()
		flying++
		beside := flying > 1
		if flying == 3 {
			close(together)
		}
		mu.Unlock()
		defer func() { mu.Lock(); flying--; mu.Unlock() }()
		<-together
		if beside || string(m.Payload) == "1/0" {
			return tooLarge
		}
		return nil
	}}
	p := newPublisher(t, b, watermill.PublisherConfig{Refused: func(_ string, err error) watermill.Refusal {
		if errors.Is(err, tooLarge) {
			return watermill.RecordRefused
		}
		return watermill.NotRefused
	}})
	if v := verdicts(p.Publish(t.Context(), claim(3, 1))); !rejected("record")(v[1]) || v.count(acked) != 2 {
		t.Error(v)
	}
}

// TestAPublisherThatDoesNotAnswer costs its time-out once. Its outcome is unknown, and its lane sends nothing until it
// answers.
func TestAPublisherThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan error)
		ended := make(chan struct{})
		b := &broker{do: func(m *message.Message) error {
			if string(m.Payload) == "0/0" {
				<-m.Context().Done() // it is told
				close(ended)
				return <-answer
			}
			return nil
		}}
		p := newPublisher(t, b, watermill.PublisherConfig{Timeout: time.Second})
		events := claim(2, 2)
		v := verdicts(p.Publish(t.Context(), events))
		if !unknown(v[0]) || !notSent(v[2]) || !acked(v[1]) || !acked(v[3]) {
			t.Fatal(v)
		}
		<-ended
		if v = p.Publish(t.Context(), events); !notSent(v[0]) || !notSent(v[2]) || !acked(v[1]) {
			t.Fatal(v)
		}
		answer <- nil
		synctest.Wait()
		b.do = nil
		if v = p.Publish(t.Context(), events); v.count(acked) != 4 || b.of("0/") != "0/0 0/0 0/1" {
			t.Fatal(v, b.of("0/"))
		}
	})
}

func TestTheEndOfTheContextBeginsNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	b := &broker{do: func(m *message.Message) error {
		cancel()
		return m.Context().Err() // not ended by that
	}}
	v := verdicts(newPublisher(t, b, watermill.PublisherConfig{}).Publish(ctx, claim(1, 3)))
	if !acked(v[0]) || !notSent(v[1]) || !notSent(v[2]) || !errors.Is(v[1], context.Canceled) {
		t.Error(v)
	}
}

func TestAPublisherThatPanics(t *testing.T) {
	t.Parallel()
	b := &broker{do: func(*message.Message) error { panic("secret") }}
	v := newPublisher(t, b, watermill.PublisherConfig{}).Publish(t.Context(), claim(1, 1))
	if !unknown(v[0]) || strings.Contains(v[0].Error(), "secret") {
		t.Error(v)
	}
}

// TestNoAmbientContext: a message has the trace of its event and nothing of the relay's context.
func TestNoAmbientContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	b := &broker{}
	events := claim(1, 2)
	events[0].Headers = map[string]string{event.HeaderTraceParent: parent}
	ambient := trace.ContextWithSpanContext(context.WithValue(t.Context(), key{}, "secret"),
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: [16]byte{1}, SpanID: [8]byte{1}}))
	if v := verdicts(newPublisher(t, b, watermill.PublisherConfig{}).Publish(ambient, events)); v.count(acked) != 2 {
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
