package outboxtest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outboxtest"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay"
)

var _ relay.Publisher = (*outboxtest.MemoryPublisher)(nil)

func countErrors(verdicts []error) (n int) {
	for _, err := range verdicts {
		if err != nil {
			n++
		}
	}
	return n
}

func TestMemoryPublisher(t *testing.T) {
	t.Parallel()
	var p outboxtest.MemoryPublisher
	a, b := newEvents("a", 3), newEvents("b", 2)
	b[1].Key = "other"
	if v := p.Publish(t.Context(), append(slices.Clone(a), b...)); len(v) != 5 || countErrors(v) != 0 {
		t.Fatalf("%v", v)
	}
	if !slices.Equal(ids(p.Events()), ids(append(slices.Clone(a), b...))) || !slices.Equal(ids(p.Key("b", "other")),
		ids(b[1:])) {
		t.Errorf("published %v", p.Events())
	}
	a[0].Payload[0] = 9
	if p.Events()[0].Payload[0] != 0 {
		t.Error("the publisher shares memory with the caller")
	}
}

func TestMemoryPublisherFaults(t *testing.T) {
	t.Parallel()
	var p outboxtest.MemoryPublisher
	a, b := newEvents("a", 3), newEvents("b", 1)
	all := append(slices.Clone(a), b...)
	scope := func(err error) string {
		switch r, ok := errors.AsType[*outcome.Refusal](err); {
		case !ok:
			return ""
		case r.Topic:
			return "topic"
		}
		return "record"
	}
	accept := p.Refuse(func(e event.Event) bool { return e.ID == a[1].ID })
	v := p.Publish(t.Context(), all)
	if v[0] != nil || scope(v[1]) != "record" || v[2] == nil || scope(v[2]) != "" || v[3] != nil {
		t.Errorf("refused: %v", v)
	}
	accept()
	acceptTopic := p.RefuseTopic("a")
	if v := p.Publish(t.Context(), all); scope(v[0]) != "topic" || v[3] != nil {
		t.Errorf("topic refused: %v", v)
	}
	acceptTopic()
	before := len(p.Events())
	p.Fail(1)
	if v := p.Publish(t.Context(), all); countErrors(v) != 4 || len(p.Events()) != before || scope(v[0]) != "" {
		t.Errorf("failed: %v", v)
	}
	p.LoseReplies(1)
	if v := p.Publish(t.Context(), all); countErrors(v) != 4 || len(p.Events()) != before+4 || scope(v[0]) != "" {
		t.Errorf("lost: %v", v)
	}
	if v := p.Publish(t.Context(), all); countErrors(v) != 0 || len(p.Events()) != before+8 {
		t.Errorf("without a fault: %v", v)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if v := p.Publish(ended, all); countErrors(v) != 4 || len(p.Events()) != before+8 {
		t.Errorf("cancelled: %v", v)
	}
}

func TestAwait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p outboxtest.MemoryPublisher
		p.Delay(time.Second)
		events := newEvents("a", 3)
		go func() {
			for i := range events {
				p.Publish(t.Context(), events[i:i+1])
			}
		}()
		start := time.Now()
		e, err := p.AwaitEvent(t.Context(), func(e event.Event) bool { return e.ID == events[1].ID })
		if err != nil || e.ID != events[1].ID || time.Since(start) != 2*time.Second {
			t.Errorf("%v, %v after %v", e.ID, err, time.Since(start))
		}
		if got, err := p.Await(t.Context(), 3); err != nil || !slices.Equal(ids(got), ids(events)) {
			t.Errorf("%v, %v", got, err)
		}
		soon, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if got, err := p.Await(soon, 4); len(got) != 3 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", got, err)
		}
		if _, err := p.AwaitEvent(soon, func(event.Event) bool { return false }); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		p.Delay(time.Hour)
		if v := p.Publish(soon, events); countErrors(v) != 3 {
			t.Errorf("cancelled during a delay: %v", v)
		}
	})
}
